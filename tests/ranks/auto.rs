//! Ranks in processes choose a schedule together from costs that each measured differently.

use crate::cases::{Case, Text, range, read, sizes};
use crate::parity::{RATE, builder};
use burn::tensor::Device;
use burn_pipeline::cost::{LinkCost, LinkCosts, Profile, StageCost};
use burn_pipeline::plan::Plan;
use burn_pipeline::schedule::Size;
use burn_pipeline::train::{AutoOptions, AutoPipeline, Builder, Choice, Decision};
use burn_pipeline_mpi::Mpi;
use pipeline_tests::reference::Reference;

const MICROBATCHES: usize = 6;
const STEPS: usize = 18;
/// The builder's clipping norm.
const CLIP: f64 = 0.05;

fn chosen_by(size: Size) -> Builder {
    builder::<Text>("ZBH1", size)
}

/// The costs that one rank measured: the higher its number, the slower its own stage. The batch can be cut into
/// another number of microbatches.
fn measured_by(rank: usize, stages: usize) -> Profile {
    let stage = |stage: usize| {
        let seconds = if stage == rank { 3.0 + rank as f64 } else { 1.0 };
        let (forward, input, weight) = (seconds, Some(2.0 * seconds), Some(0.25 * seconds));
        StageCost { forward, input, weight, activation_bytes: 1.0 + rank as f64, ..StageCost::default() }
    };
    let links = LinkCosts { default: LinkCost { latency: 0.5 * rank as f64, bandwidth: None }, ..LinkCosts::default() };
    Profile::new((0..stages).map(stage).collect(), links).unwrap()
}

fn text(plan: &Plan) -> String {
    plan.to_csv().replace('\n', " | ")
}

/// Asserts that losses and weights are those of the plain loop.
fn assert_plain(losses: &[f64], weights: &[Vec<f32>]) {
    let (case, cut) = (Text::new(MICROBATCHES), sizes(MICROBATCHES, MICROBATCHES));
    let mut reference = Reference::new(case.model());
    for (step, loss) in losses.iter().enumerate() {
        let expected = reference.step(&cut, RATE, Some(CLIP), |model, i| case.loss(model, range(&cut, i)));
        assert_eq!(*loss, expected.loss, "step {step}");
    }
    assert_eq!(weights, reference.weights());
}

fn train(auto: &mut AutoPipeline) {
    let step = |_| auto.step(Text::new(MICROBATCHES).batch(), RATE).unwrap().loss;
    let losses: Vec<f64> = (0..STEPS).map(step).collect();
    let weights: Vec<Vec<f32>> = auto.pipeline().weights().unwrap().iter().flatten().map(read).collect();
    assert_plain(&losses, &weights);
}

/// Each rank prints the plan that all adopted, and the plan that it would have chosen alone.
pub(crate) fn agree(mpi: &Mpi) {
    let size = Size::new(mpi.ranks(), MICROBATCHES);
    let options = AutoOptions { warm_up: 1, measured: 2, trial: 0, gain: f64::NEG_INFINITY, ..AutoOptions::default() };
    let options = AutoOptions { cap: Some(4.5), ..options };
    let own = measured_by(mpi.rank(), mpi.ranks());
    let link = Box::new(mpi.link(Device::flex()).unwrap());
    let mut auto =
        AutoPipeline::new_rank(chosen_by(size), size, options.clone(), link).unwrap().with_profile(own.clone());
    train(&mut auto);
    let runs = text(auto.current_plan().unwrap().plan());
    let Decision::Switched(Choice { planned, seconds, .. }) = auto.decision() else { panic!("{}", auto.decision()) };
    assert_eq!(text(planned.plan.plan()), runs);
    println!("together: {seconds:?} {} {runs}", planned.best.seconds);
    drop(auto);
    let mut alone = AutoPipeline::new(chosen_by(size), size, options).unwrap().with_profile(own);
    train(&mut alone);
    println!("alone: {}", text(alone.current_plan().unwrap().plan()));
}

/// All ranks try a choice that misleading costs favour, and decide alike from the same numbers.
pub(crate) fn go_back(mpi: &Mpi) {
    let size = Size::new(mpi.ranks(), MICROBATCHES);
    let stage = StageCost { forward: 1.0, activation_bytes: 1.0, ..StageCost::default() };
    let profile = Profile::new(vec![stage; mpi.ranks()], LinkCosts::default()).unwrap();
    let options = AutoOptions { warm_up: 1, measured: 2, trial: 2, gain: f64::NEG_INFINITY, ..AutoOptions::default() };
    // Memory for one microbatch: microbatches run one after the other, each waiting for a slow network.
    let options = AutoOptions { cap: Some(1.0), ..options };
    let slow = LinkCosts { default: LinkCost { latency: 0.05, bandwidth: None }, ..LinkCosts::default() };
    let link = Box::new(mpi.link(Device::flex()).unwrap());
    let mut auto =
        AutoPipeline::new_rank(chosen_by(size).delayed(slow), size, options, link).unwrap().with_profile(profile);
    train(&mut auto);
    let (switches, runs) = (auto.switches(), auto.current_plan().unwrap().plan().name().to_owned());
    let (Decision::Kept(Choice { trials, running, first, .. })
    | Decision::Switched(Choice { trials, running, first, .. })) = auto.decision()
    else {
        panic!("{}", auto.decision())
    };
    let trial = &trials[0];
    assert_eq!(running == first, !trial.is_won(), "{trial}");
    assert_eq!(runs == "ZBH1", !trial.is_won(), "{trial}");
    assert_eq!((switches - usize::from(trial.is_won())) % 4, 0, "{trial}");
    println!("together: {:?}, {:?}", trial.running_seconds, trial.challenger_seconds);
}
