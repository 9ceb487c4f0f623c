//! A training of the classifier, on one device or as a pipeline, and its results.

use crate::classifier::{Classifier, points};
use burn::lr_scheduler::LrScheduler;
use burn::optim::{AdamConfig, ModuleOptimizer};
use burn::tensor::Device;
use burn_pipeline::{Builder, Pipeline, Size};
use burn_pipeline_learner::PipelineStrategy;
use burn_train::metric::{AccuracyMetric, LossMetric};
use burn_train::{Learner, LearningResult, SupervisedTraining, TrainingStrategy};
use std::path::Path;
use tempfile::TempDir;

/// The pipeline of a schedule, with four microbatches.
pub(crate) fn pipeline(schedule: &str, ranks: usize) -> Builder {
    Pipeline::builder().schedule(schedule, size(schedule, ranks, 4)).devices(vec![Device::flex()])
}

/// Zero-bubble V needs two chunks a rank.
pub(crate) fn size(schedule: &str, ranks: usize, microbatches: usize) -> Size {
    match schedule {
        "ZBVZeroBubble" => Size::new(ranks, microbatches).with_chunks(2),
        _ => Size::new(ranks, microbatches),
    }
}

pub(crate) type Training = SupervisedTraining<Classifier>;

/// A training of two epochs over 40 points in batches of 12.
pub(crate) fn training(folder: &Path) -> Training {
    SupervisedTraining::new(folder, points(40, 12, 0.0), points(20, 8, 0.01))
        .metrics((LossMetric::new(), AccuracyMetric::new()))
        .with_application_logger(None)
        .num_epochs(2)
}

/// Runs on one device, or as a pipeline.
pub(crate) fn on(training: Training, pipeline: Option<Builder>) -> Training {
    match pipeline {
        None => training,
        Some(builder) => training.with_training_strategy(TrainingStrategy::from(PipelineStrategy::new(builder))),
    }
}

/// Models are made with autodiff, as Burn's own training needs.
pub(crate) fn device() -> Device {
    Device::flex().autodiff()
}

pub(crate) fn model() -> Classifier {
    Classifier::new(7, &device())
}

pub(crate) fn learner(model: Classifier, scheduler: impl LrScheduler + 'static) -> Learner<Classifier> {
    Learner::new(model, adam(), scheduler)
}

pub(crate) fn adam() -> ModuleOptimizer {
    AdamConfig::new().init()
}

/// Every value of every metric, by split, epoch and metric, as Burn's logger wrote them; one file per line.
pub(crate) fn metrics(folder: &Path) -> Vec<(String, Vec<f64>)> {
    let mut found = Vec::new();
    for split in ["train", "valid"] {
        for epoch in 1..100 {
            for metric in ["Loss", "Accuracy"] {
                let name = format!("{split}/epoch-{epoch}/{metric}.log");
                let Ok(text) = std::fs::read_to_string(folder.join(&name)) else { continue };
                let value = |line: &str| line.split(',').next().and_then(|value| value.parse().ok()).expect("a number");
                found.push((name, text.lines().map(value).collect()));
            }
        }
    }
    found
}

pub(crate) fn weights(model: &Classifier) -> Vec<f32> {
    let stages = burn_pipeline::stage::named_weights(model, &Default::default());
    let data = |weight: &burn_pipeline::stage::NamedWeight| weight.value.to_data().expect("values");
    stages.iter().flat_map(|weight| data(weight).iter::<f32>().collect::<Vec<_>>()).collect()
}

/// Asserts that two trainings wrote the same metrics and ended with the same weights.
pub(crate) fn assert_equal(
    what: &str,
    one: (&TempDir, &LearningResult<Classifier>),
    other: (&TempDir, &LearningResult<Classifier>),
) {
    assert_same_weights(what, one.1, other.1);
    assert_same_metrics(what, one.0, other.0);
}

/// Asserts that two trainings wrote the same metrics.
pub(crate) fn assert_same_metrics(what: &str, one: &TempDir, other: &TempDir) {
    let (expected, got) = (metrics(one.path()), metrics(other.path()));
    assert!(!expected.is_empty(), "{what}: metrics were written");
    assert_eq!(expected.len(), got.len(), "{what}: the same files");
    for ((name, expected), (other, got)) in expected.iter().zip(&got) {
        assert_eq!((name, expected.len()), (other, got.len()), "{what}");
        for (expected, got) in expected.iter().zip(got) {
            assert!((expected - got).abs() <= 1e-6 * expected.abs().max(1.0), "{what}, {name}: {got}, not {expected}");
        }
    }
}

/// Asserts that two trainings ended well, with the same weights.
pub(crate) fn assert_same_weights(what: &str, one: &LearningResult<Classifier>, other: &LearningResult<Classifier>) {
    for result in [one, other] {
        assert!(result.error.is_none(), "{what}: {}", message(result));
    }
    let (expected, got) = (weights(&one.model), weights(&other.model));
    assert_eq!(expected.len(), got.len(), "{what}");
    for (expected, got) in expected.iter().zip(got) {
        assert!((expected - got).abs() <= 1e-6 * expected.abs().max(1.0), "{what}: a weight is {got}, not {expected}");
    }
}

/// The message of a training's error.
pub(crate) fn message(result: &LearningResult<Classifier>) -> String {
    result.error.as_ref().map(ToString::to_string).unwrap_or_default()
}

/// Returns true if the model has its initial weights.
pub(crate) fn is_untrained(model: &Classifier) -> bool {
    weights(model) == weights(&self::model())
}
