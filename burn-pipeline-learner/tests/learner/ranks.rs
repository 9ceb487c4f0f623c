//! One rank of several that each have their own learner and training, as processes do, over any link.

use crate::classifier::Classifier;
use crate::training::{Training, adam, assert_equal, assert_same_weights, device, metrics, model, size, training};
use burn::lr_scheduler::step::StepLrSchedulerConfig;
use burn::tensor::Device;
use burn_pipeline::link::Link;
use burn_pipeline::{Builder, Pipeline};
use burn_pipeline_learner::PipelineStrategy;
use burn_train::{Learner, LearningResult};
use std::time::Duration;
use tempfile::{TempDir, tempdir};

/// The longest allowed wait.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// A learner of this model with a falling learning rate.
pub(crate) fn slowing(model: Classifier) -> Learner<Classifier> {
    let scheduler = StepLrSchedulerConfig::new(0.01, 3).with_gamma(0.3).init().expect("a scheduler");
    Learner::new(model, adam(), scheduler)
}

/// A pipeline with one rank per rank of the link.
pub(crate) fn builder(link: &dyn Link, schedule: &str, microbatches: usize) -> Builder {
    let size = size(schedule, link.ranks(), microbatches);
    Pipeline::builder().schedule(schedule, size).devices(vec![Device::flex()]).timeout(DEADLINE)
}

/// A model with other weights on every rank but the first.
pub(crate) fn other_model(rank: usize) -> Classifier {
    Classifier::new(7 + 100 * rank as u64, &device())
}

/// Trains as one rank. Also returns the training's folder.
pub(crate) fn train(
    link: Box<dyn Link>,
    (schedule, microbatches): (&str, usize),
    set_up: impl FnOnce(Training) -> Training,
    learner: Learner<Classifier>,
) -> (TempDir, LearningResult<Classifier>) {
    let folder = tempdir().unwrap();
    let strategy = PipelineStrategy::of_rank(builder(link.as_ref(), schedule, microbatches), link);
    let result = strategy.on(set_up(training(folder.path()))).launch(learner);
    (folder, result)
}

/// Trains as one rank, and compares with one device: weights on every rank, metrics on rank 0, which alone has them.
pub(crate) fn compare(link: Box<dyn Link>) {
    let rank = link.rank();
    let accumulating = |training: Training| training.grads_accumulation(3).num_epochs(3);
    let one = tempdir().unwrap();
    let expected = accumulating(training(one.path())).launch(slowing(model()));
    let (folder, got) = train(link, ("1F1B", 4), accumulating, slowing(other_model(rank)));
    match rank {
        0 => assert_equal("rank 0", (&one, &expected), (&folder, &got)),
        _ => {
            assert_same_weights(&format!("rank {rank}"), &expected, &got);
            assert!(metrics(folder.path()).is_empty(), "rank {rank} writes metrics");
        }
    }
}
