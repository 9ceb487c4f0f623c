//! How trainings end: early, interrupted, or by an error.

use crate::classifier::{Classifier, Cut};
use crate::training::{assert_equal, is_untrained, learner, message, metrics, model, on, pipeline, training};
use burn::lr_scheduler::constant::ConstantLr;
use burn::module::{Module, ModuleMapper, Param};
use burn::nn::LinearConfig;
use burn::optim::SgdConfig;
use burn::tensor::{Device, FloatDType, Tensor};
use burn_pipeline::stage::Precision;
use burn_pipeline::{Pipeline, Vocabulary};
use burn_train::metric::AccuracyMetric;
use burn_train::metric::store::{Aggregate, Direction, Split};
use burn_train::{Learner, LearningResult, MetricEarlyStoppingStrategy, StoppingCondition};
use std::time::{Duration, Instant};
use tempfile::tempdir;

#[test]
fn training_stops_early_in_the_same_epoch_as_on_one_device() {
    let stopping = || {
        let condition = StoppingCondition::NoImprovementSince { n_epochs: 1 };
        MetricEarlyStoppingStrategy::new(
            &AccuracyMetric::new(),
            Aggregate::Mean,
            Direction::Highest,
            Split::Valid,
            condition,
        )
    };
    let run = |builder| {
        let folder = tempdir().unwrap();
        let training = on(training(folder.path()), builder).num_epochs(30).early_stopping(stopping());
        let result = training.launch(Learner::new(model(), SgdConfig::new().init(), ConstantLr::new(0.1)));
        (folder, result)
    };
    let ((one, expected), (other, got)) = (run(None), run(Some(pipeline("1F1B", 2))));
    let epochs = metrics(one.path()).len() / 4;
    assert!((2..30).contains(&epochs), "{epochs} epochs");
    assert_equal("stopped early", (&one, &expected), (&other, &got));
}

#[test]
fn an_interrupted_training_ends_after_the_item_in_which_it_was() {
    let run = |builder| {
        let folder = tempdir().unwrap();
        let training = on(training(folder.path()), builder);
        training.interrupter().stop(Some("enough"));
        (folder, training.launch(learner(model(), ConstantLr::new(0.01))))
    };
    let ((one, expected), (other, got)) = (run(None), run(Some(pipeline("GPipe", 2))));
    assert_equal("interrupted", (&one, &expected), (&other, &got));
    assert_eq!(got.interrupted.and_then(|stop| stop.reason).as_deref(), Some("enough"));
    assert!(!is_untrained(&got.model), "one item was trained on");
    assert!(metrics(other.path()).iter().all(|(name, _)| name.starts_with("train/epoch-1/")), "and nothing validated");
}

/// A training as a pipeline of two ranks, and its error message.
fn failing(model: Classifier) -> (LearningResult<Classifier>, String) {
    let folder = tempdir().unwrap();
    let builder = pipeline("1F1B", 2).timeout(Duration::from_secs(20));
    let result = on(training(folder.path()), Some(builder)).launch(learner(model, ConstantLr::new(0.01)));
    let message = message(&result);
    (result, message)
}

#[test]
fn a_panic_in_a_stage_ends_the_training_with_an_error_that_names_it() {
    let began = Instant::now();
    let (result, message) = failing(model().that_panics());
    for part in ["rank 1", "stage 1", "microbatch 0", "this layer is broken"] {
        assert!(message.contains(part), "`{part}` in: {message}");
    }
    assert!(began.elapsed() < Duration::from_secs(15), "it did not wait for its timeout");
    assert!(is_untrained(&result.model), "the model is returned as it was");
}

#[test]
fn a_cut_that_leaves_out_a_layer_is_refused() {
    let (result, message) = failing(model().cut(Cut::LeavesOut));
    assert!(message.contains("no stage holds `layers.2.weight`"), "{message}");
    assert!(is_untrained(&result.model));
}

#[test]
fn stages_of_new_layers_are_refused() {
    let (_, message) = failing(model().cut(Cut::New));
    assert!(message.contains("stage 0 holds `layers.0.weight`, which is no parameter of the model"), "{message}");
}

#[test]
fn a_layer_on_two_stages_that_is_not_declared_shared_is_refused() {
    let (result, message) = failing(model().cut(Cut::Twice));
    assert!(message.contains("layers.1.weight") && message.contains("share"), "{message}");
    assert!(is_untrained(&result.model));
}

#[test]
fn a_parameter_that_the_model_holds_at_two_paths_is_refused() {
    let mut twice = model();
    twice.layers[2].weight = twice.layers[1].weight.clone();
    let (_, message) = failing(twice);
    assert!(message.contains("`layers.1.weight` and `layers.2.weight` are one parameter"), "{message}");
}

#[test]
fn a_pipeline_that_cannot_be_built_ends_the_training_with_the_reason() {
    let folder = tempdir().unwrap();
    let builder = Pipeline::builder().devices(vec![Device::flex()]);
    let result = on(training(folder.path()), Some(builder)).launch(learner(model(), ConstantLr::new(0.01)));
    let message = result.error.map(|error| error.to_string()).unwrap_or_default();
    assert!(message.contains("no schedule"), "{message}");
}

#[test]
fn a_vocabulary_that_is_spread_is_refused_at_launch() {
    let folder = tempdir().unwrap();
    let head = |device: &Device| LinearConfig::new(4, 4).with_bias(false).init(device);
    let builder = pipeline("1F1B", 2).vocabulary(Vocabulary::new().head("head", head));
    let result = on(training(folder.path()), Some(builder)).launch(learner(model(), ConstantLr::new(0.01)));
    let message = message(&result);
    assert!(message.contains("vocabulary parallel (`Builder::vocabulary`), which does not work"), "{message}");
    assert!(is_untrained(&result.model), "nothing has run");
}

/// Rounds every parameter.
struct Rounded;

impl ModuleMapper for Rounded {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| value.cast(FloatDType::BF16))
    }
}

#[test]
fn a_model_in_half_precision_is_refused_where_stages_hold_f32() {
    let folder = tempdir().unwrap();
    let run = |model: Classifier| {
        let builder = pipeline("1F1B", 2).precision(Precision::bf16());
        on(training(folder.path()), Some(builder)).launch(learner(model, ConstantLr::new(0.01)))
    };
    let message = message(&run(model().map(&mut Rounded)));
    for part in ["stage 0 holds `layers.0.weight` in F32, but the learner's model has it in BF16", "in f32"] {
        assert!(message.contains(part), "`{part}` in: {message}");
    }
}

#[test]
fn a_model_without_autodiff_is_refused() {
    let (_, message) = failing(Classifier::new(7, &Device::flex()));
    assert!(message.contains("no parameter of the model is trained"), "{message}");
}
