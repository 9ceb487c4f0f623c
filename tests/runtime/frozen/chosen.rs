//! Frozen layers are measured without a backward, and plans are chosen by that.

use super::{LAYERS, MICROBATCHES, SAMPLES, WIDTH, batch, builder, plain, weights};
use burn::tensor::Tensor;
use burn_pipeline::cost::{Layers, LinkCosts, Partition, Profile, StageCost};
use burn_pipeline::schedule::by_name;
use burn_pipeline::simulate::{SimulateOptions, simulate};
use burn_pipeline::stage::SplitBackward;
use burn_pipeline::train::{AutoOptions, AutoPipeline, Choice, Decision, StepReport};
use burn_pipeline::{Batch, Size};

const RATE: f64 = 1e-2;

#[test]
fn measured_layers_know_which_of_them_train() {
    for split in [SplitBackward::Eager, SplitBackward::Captured] {
        let builder = builder("1F1B", Size::new(LAYERS, MICROBATCHES), &[2, 3]).split(split);
        let x = || Tensor::<2>::ones([SAMPLES, WIDTH], &pipeline_tests::device::device());
        let measured = builder.measure_layers(Batch::new(x()).target(x()), &['L'; LAYERS], 2).unwrap().layers;
        assert_eq!(measured.first_trained(), 2);
        let backward = measured.all().iter().map(|layer| layer.full_backward() > 0.0).collect::<Vec<_>>();
        assert_eq!(backward, [false, false, true, true], "{split:?}");
        assert!(measured.all().iter().all(|layer| layer.forward > 0.0));
        assert_eq!((measured.all()[2].input, measured.all()[0].activation_bytes), (0.0, 0.0));
        assert!(measured.all()[2].activation_bytes > 0.0);
    }
}

#[test]
fn a_profile_of_measured_steps_knows_which_stages_train() {
    let mut pipeline = builder("ZBH1", Size::new(LAYERS, MICROBATCHES), &[1, 3]).build().unwrap();
    let steps: Vec<StepReport> = (0..2).map(|step| pipeline.step(batch(step), RATE).unwrap()).collect();
    let profile = StepReport::profile(pipeline.placement(), &steps).unwrap();
    assert_eq!(profile.first_trained(), 1);
    let [frozen, first, ..] = profile.stages() else { panic!("four stages") };
    assert_eq!((frozen.full_backward(), frozen.activation_bytes, first.input), (0.0, 0.0, Some(0.0)));
    assert!(first.weight_backward() > 0.0);
}

/// Layers that take the same seconds, of which the second half trains.
fn half_frozen() -> Profile {
    let second = Some(1.0);
    let layer =
        StageCost { forward: 1.0, input: second, weight: second, activation_bytes: 10.0, ..StageCost::default() };
    let layer = StageCost { message_bytes: 1.0, weight_bytes: 100.0, ..layer };
    Profile::new(vec![layer; LAYERS], LinkCosts::default()).unwrap().train_from(LAYERS / 2).unwrap()
}

#[test]
fn the_plan_chosen_for_frozen_layers_is_faster_than_an_even_cut_and_changes_no_number() {
    let size = Size::new(2, MICROBATCHES);
    let options = AutoOptions { warm_up: 1, measured: 1, trial: 0, layers: Some(LAYERS), ..AutoOptions::default() };
    let options = AutoOptions { gain: f64::NEG_INFINITY, ..options };
    let auto = AutoPipeline::new(builder("1F1B", size, &[2, 3]), size, options).unwrap();
    let mut auto = auto.with_profile(half_frozen());
    let (losses, expected) = plain(&[2, 3], 5);
    for (step, loss) in losses.iter().enumerate() {
        assert_eq!(auto.step(batch(step), RATE).unwrap().loss, *loss, "step {step}, {}", auto.decision());
    }
    assert!(weights(auto.pipeline()) == expected);
    let Decision::Switched(Choice { planned, .. }) = auto.decision() else { panic!("{}", auto.decision()) };
    let (cut, seconds) = (planned.best.partition.clone(), planned.best.seconds);
    let layers = Layers::of_profile(&half_frozen()).unwrap();
    let even = Partition::even(LAYERS, 2).unwrap().profile(&layers, LinkCosts::default()).unwrap();
    let plan = by_name("1F1B").unwrap().build(size).unwrap().train_from(1).unwrap();
    let evenly = simulate(&plan, &even, &SimulateOptions::default()).unwrap().makespan;
    assert!(seconds < 0.9 * evenly, "{seconds} s on {cut}, {evenly} s on an even cut");
    let runs = auto.current_plan().unwrap();
    let first = runs.plan().first_trained();
    assert_eq!(first, cut.boundaries().partition_point(|&start| start <= LAYERS / 2));
    assert!(!runs.plan().any_task(|task| task.op().is_backward() && task.stage().index() < first));
}
