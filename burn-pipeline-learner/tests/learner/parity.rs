//! Pipelines compute the same numbers as one device.

use crate::classifier::{Classifier, points};
use crate::training::{Training, adam, assert_equal, device, learner, message, model, on, pipeline, training, weights};
use burn::grad_clipping::GradientClippingConfig;
use burn::lr_scheduler::constant::ConstantLr;
use burn::lr_scheduler::step::StepLrSchedulerConfig;
use burn::module::{Module, ModuleMapper, Param};
use burn::optim::{AdamConfig, SgdConfig};
use burn::tensor::{DType, Device, Tensor};
use burn_pipeline::stage::Precision;
use burn_pipeline::train::OnNonFinite;
use burn_pipeline::{Builder, Pipeline, Size};
use burn_train::checkpoint::KeepLastNCheckpoints;
use burn_train::{Learner, SupervisedTraining};
use tempfile::tempdir;

const RATE: f64 = 0.01;

/// Trains on one device and as each of these pipelines, and compares.
fn compare(
    pipelines: impl IntoIterator<Item = (String, Builder)>,
    set_up: impl Fn(Training) -> Training,
    learner: impl Fn() -> Learner<Classifier>,
) {
    let folder = tempdir().unwrap();
    let expected = set_up(training(folder.path())).launch(learner());
    for (name, builder) in pipelines {
        let other = tempdir().unwrap();
        let got = on(set_up(training(other.path())), Some(builder)).launch(learner());
        assert_equal(&name, (&folder, &expected), (&other, &got));
    }
}

fn two_ranks() -> [(String, Builder); 1] {
    [("1F1B on two ranks".to_owned(), pipeline("1F1B", 2))]
}

#[test]
fn metrics_and_weights_are_those_of_one_device_on_one_to_three_ranks() {
    let named = |schedule: &'static str, ranks| (format!("{schedule} on {ranks} rank(s)"), pipeline(schedule, ranks));
    let pipelines =
        ["GPipe", "1F1B", "ZBH1"].into_iter().flat_map(|schedule| (1..=3).map(move |ranks| named(schedule, ranks)));
    compare(
        pipelines.chain([named("ZBVZeroBubble", 3)]),
        |training| training,
        || learner(model(), ConstantLr::new(RATE)),
    );
}

/// Recomputes every parameter from itself, in autodiff's graph.
struct Computed;

impl ModuleMapper for Computed {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| value * 1.0)
    }
}

#[test]
fn parameters_that_are_nodes_of_a_graph_are_trained_as_leaves_are() {
    let folder = tempdir().unwrap();
    let expected = training(folder.path()).launch(learner(model(), ConstantLr::new(RATE)));
    for schedule in ["1F1B", "ZBH1"] {
        let (other, computed) = (tempdir().unwrap(), model().map(&mut Computed));
        let got =
            on(training(other.path()), Some(pipeline(schedule, 2))).launch(learner(computed, ConstantLr::new(RATE)));
        assert_equal(schedule, (&folder, &expected), (&other, &got));
    }
}

#[test]
fn stages_in_half_precision_train_the_learners_f32_model() {
    let sgd = || Learner::new(model(), SgdConfig::new().init(), ConstantLr::new(0.05));
    let (one, other) = (tempdir().unwrap(), tempdir().unwrap());
    let expected = weights(&training(one.path()).launch(sgd()).model);
    let half = pipeline("1F1B", 2).precision(Precision::bf16());
    let got = on(training(other.path()), Some(half)).launch(sgd());
    assert!(got.error.is_none(), "{}", message(&got));
    assert!(got.model.layers.iter().all(|layer| layer.weight.dtype() == DType::F32));
    let got = weights(&got.model);
    let off = got.iter().zip(&expected).map(|(got, expected)| (got - expected).abs()).fold(0.0, f32::max);
    assert!(got != weights(&model()) && 0.0 < off && off < 0.01, "{off}");
}

#[test]
fn a_learning_rate_scheduler_steps_with_the_pipeline() {
    let scheduler = || StepLrSchedulerConfig::new(0.05, 3).with_gamma(0.3).init().expect("a scheduler");
    compare(two_ranks(), |training| training, || Learner::new(model(), SgdConfig::new().init(), scheduler()));
}

#[test]
fn gradients_are_clipped_by_the_learners_optimizer() {
    let optimizer = || AdamConfig::new().with_grad_clipping(Some(GradientClippingConfig::Norm(1e-2))).init();
    compare(two_ranks(), |training| training, || Learner::new(model(), optimizer(), ConstantLr::new(RATE)));
}

#[test]
fn gradients_are_accumulated_over_items() {
    let accumulating = |training: Training| training.grads_accumulation(3);
    compare(two_ranks(), accumulating, || Learner::new(model(), SgdConfig::new().init(), ConstantLr::new(0.05)));
}

#[test]
fn frozen_parameters_stay_as_they_were() {
    let frozen = || learner(model().with_frozen_layer(), ConstantLr::new(RATE));
    compare(two_ranks(), |training| training, frozen);
}

#[test]
fn running_statistics_come_back_into_the_learners_model() {
    // With one microbatch, the statistics are those of the whole batch.
    let pipeline = Pipeline::builder().schedule("GPipe", Size::new(2, 1)).devices(vec![Device::flex()]);
    let with_norm = || learner(model().with_norm(&device()), ConstantLr::new(RATE));
    compare([("with a batch norm".to_owned(), pipeline)], |training| training, with_norm);
}

#[test]
fn what_a_stage_changes_after_a_step_comes_back_into_the_learners_model_and_its_checkpoints() {
    let folder = tempdir().unwrap();
    let counting = || learner(model().that_counts(&device()), ConstantLr::new(RATE));
    let saving = |epochs| {
        let training = training(folder.path()).num_epochs(epochs).with_default_checkpointers();
        on(training, Some(pipeline("1F1B", 2)))
    };
    let steps = |model: &Classifier| model.steps.as_ref().map(|steps| steps.val().into_scalar::<f32>());
    // Four items an epoch.
    assert_eq!(steps(&saving(1).launch(counting()).model), Some(4.0));
    assert_eq!(steps(&saving(3).checkpoint(1).launch(counting()).model), Some(12.0));
}

/// As a skipped step of `Pipeline::step`.
#[test]
fn steps_whose_items_are_all_skipped_run_no_rule() {
    let steps = |model: &Classifier| model.steps.as_ref().map(|steps| steps.val().into_scalar::<f32>());
    for (shift, counted) in [(0.0, 4.0), (f32::NAN, 0.0)] {
        let folder = tempdir().unwrap();
        let training = SupervisedTraining::new(folder.path(), points(40, 12, shift), points(20, 8, 0.01));
        let training = training.with_application_logger(None).num_epochs(1);
        let before = model().that_counts(&device());
        let skipping = pipeline("1F1B", 2).on_non_finite(OnNonFinite::Skip);
        let after = on(training, Some(skipping)).launch(learner(before.clone(), ConstantLr::new(RATE))).model;
        assert_eq!(steps(&after), Some(counted), "shift {shift}");
        assert_eq!(weights(&after) == weights(&before), counted == 0.0, "shift {shift}");
    }
}

#[test]
fn a_training_that_goes_on_from_a_checkpoint_ends_as_one_that_never_stopped() {
    let scheduler = || StepLrSchedulerConfig::new(0.02, 5).with_gamma(0.5).init().expect("a scheduler");
    let whole = tempdir().unwrap();
    let expected = training(whole.path()).num_epochs(4).launch(Learner::new(model(), adam(), scheduler()));
    let folder = tempdir().unwrap();
    let saving = |training: Training| {
        let training = training.with_default_checkpointers().with_checkpointing_strategy(KeepLastNCheckpoints::new(2));
        on(training, Some(pipeline("1F1B", 2)))
    };
    saving(training(folder.path()).num_epochs(2)).launch(Learner::new(model(), adam(), scheduler()));
    // Other initial weights, which the checkpoint replaces, and another cut.
    let other = Learner::new(Classifier::new(100, &device()), adam(), scheduler());
    let resumed = saving(training(folder.path()).num_epochs(4).checkpoint(2));
    let resumed = on(resumed, Some(pipeline("GPipe", 3))).launch(other);
    assert_equal("resumed", (&whole, &expected), (&folder, &resumed));
}
