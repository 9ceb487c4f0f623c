//! A schedule that is chosen by measured costs: whatever is chosen, the numbers stay.

use crate::cases::{Case, Text, read};
use crate::parity::builder;
use burn::tensor::Device;
use burn_pipeline::cost::{Link as Speed, Links, Profile, StageCost};
use burn_pipeline::link::Threads;
use burn_pipeline::planner::Way;
use burn_pipeline::schedule::{OneFOneB, Size, by_name};
use burn_pipeline::stage::{Accumulation, Names};
use burn_pipeline::train::{AutoError, AutoOptions, AutoPipeline, Builder, CheckpointError, Decision};

const STEPS: usize = 6;
const MICROBATCHES: usize = 6;

fn ordered(size: Size) -> Builder {
    let any = by_name("1F1B").unwrap();
    builder::<Text>(any.as_ref(), Size { chunks: 1, ..size }).accumulation(Accumulation::Ordered)
}

/// Losses of all steps, and the weights after them.
fn train(size: Size, options: AutoOptions) -> (Vec<f64>, Vec<Vec<f32>>, AutoPipeline) {
    let mut auto = AutoPipeline::new(ordered(size), size, options).unwrap();
    let step = |_| auto.step(Text::new(MICROBATCHES).batch(), 1e-2).unwrap().loss;
    let losses = (0..STEPS).map(step).collect();
    let weights = auto.pipeline().weights().unwrap().iter().flatten().map(read).collect();
    (losses, weights, auto)
}

#[test]
fn a_switch_at_a_step_boundary_changes_no_number() {
    for (ranks, chunks) in [(2, 1), (2, 2), (4, 2)] {
        let size = Size { ranks, chunks, microbatches: MICROBATCHES };
        let short = AutoOptions { warm_up: 1, measured: 2, ..AutoOptions::default() };
        // The best is never twice as slow as what runs: a switch is certain. And it never takes no time at all.
        let (losses, weights, switched) = train(size, AutoOptions { gain: -1.0, ..short });
        let (expected, same, kept) = train(size, AutoOptions { gain: 1.0, ..short });
        assert!(matches!(kept.decision(), Decision::Kept { .. }), "{:?}", kept.decision());
        let Decision::Switched { planned, seconds, .. } = switched.decision() else {
            panic!("{:?}", switched.decision())
        };
        assert!(planned.best.candidate.seconds <= *seconds * (1.0 + 1e-9), "worse than what ran was chosen");
        assert_eq!(losses, expected, "{size:?}");
        assert_eq!(weights, same, "{size:?}");
    }
}

#[test]
fn the_plan_that_was_chosen_is_the_one_that_runs() {
    let size = Size { ranks: 2, chunks: 2, microbatches: MICROBATCHES };
    let options = AutoOptions { warm_up: 0, measured: 1, gain: -1.0, ..AutoOptions::default() };
    let (_, _, mut auto) = train(size, options);
    let runs = auto.pipeline().plan(MICROBATCHES).unwrap();
    let Decision::Switched { planned, .. } = auto.decision() else { panic!("{:?}", auto.decision()) };
    assert_eq!(runs.plan().rows(), planned.best.plan.plan().rows());
    assert!(!matches!(planned.best.candidate.choice.way, Way::OneDevice | Way::DataParallel));
}

#[test]
fn a_pipeline_whose_parameters_have_no_names_of_their_own_stays_as_it_is() {
    let size = Size::new(2, MICROBATCHES);
    let anonymous = |at: &burn_pipeline::train::StageContext| {
        Text::stage(at).named(Names::default().renamed(|_| "weight".to_owned()))
    };
    let options = AutoOptions { warm_up: 0, measured: 1, gain: -1.0, ..AutoOptions::default() };
    let mut auto = AutoPipeline::new(ordered(size).stages(anonymous), size, options).unwrap();
    let losses: Vec<f64> = (0..3).map(|_| auto.step(Text::new(MICROBATCHES).batch(), 1e-2).unwrap().loss).collect();
    assert!(losses[2] < losses[0]);
    let Decision::Failed(error) = auto.decision() else { panic!("{:?}", auto.decision()) };
    assert!(matches!(error, AutoError::Move(CheckpointError::SameName { .. })), "{error}");
}

#[test]
fn ranks_of_their_own_take_one_decision_and_their_numbers_stay() {
    for (ranks, chunks) in [(2, 1), (2, 2), (3, 1)] {
        let size = Size { ranks, chunks, microbatches: MICROBATCHES };
        let options = AutoOptions { warm_up: 1, measured: 2, gain: -1.0, ..AutoOptions::default() };
        let (expected, weights, _) = train(size, AutoOptions { gain: 1.0, ..options });
        let threads = Threads::new(ranks);
        let run = |rank: usize| {
            let link = Box::new(threads.link(rank, Device::flex()));
            let mut auto = AutoPipeline::over(ordered(size), size, options, link).unwrap();
            let step = |_| auto.step(Text::new(MICROBATCHES).batch(), 1e-2).unwrap().loss;
            let losses: Vec<f64> = (0..STEPS).map(step).collect();
            let trained: Vec<Vec<f32>> = auto.pipeline().weights().unwrap().iter().flatten().map(read).collect();
            let runs = auto.pipeline().plan(MICROBATCHES).unwrap();
            let Decision::Switched { planned, seconds, .. } = auto.decision() else { panic!("{}", auto.decision()) };
            assert_eq!(runs.plan().rows(), planned.best.plan.plan().rows());
            ((losses, trained), (runs, planned.best.profile.clone(), *seconds, auto.decision().to_string()))
        };
        let run = &run;
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || run(rank))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        for (numbers, decision) in &outcomes {
            assert_eq!(numbers, &(expected.clone(), weights.clone()), "{size:?}");
            assert_eq!(decision, &outcomes[0].1, "{size:?}");
        }
    }
}

#[test]
fn ranks_that_measured_otherwise_go_on_with_the_median() {
    let threads = Threads::new(3);
    let profile = |seconds: f64| {
        let links = Links { default: Speed { latency: seconds / 8.0, bandwidth: None }, ..Links::default() };
        Profile::new(vec![StageCost { forward: seconds, ..StageCost::default() }; 3], links).unwrap()
    };
    let agree = |rank: usize| {
        let link = Box::new(threads.link(rank, Device::flex()));
        let builder = builder::<Text>(&OneFOneB, Size::new(3, 3));
        let mut pipeline = builder.build_rank(link).unwrap();
        pipeline.agree_on_profile(&profile([0.1, 0.3, 0.2][rank])).unwrap()
    };
    let agree = &agree;
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..3).map(|rank| scope.spawn(move || agree(rank))).collect();
        ranks.into_iter().for_each(|rank| assert_eq!(rank.join().unwrap(), profile(0.2)));
    });
    // Ranks of one process have one caller.
    let mut alone = builder::<Text>(&OneFOneB, Size::new(3, 3)).build().unwrap();
    assert_eq!(alone.agree_on_profile(&profile(0.1)).unwrap(), profile(0.1));
}

#[test]
fn a_slow_network_is_measured_and_planned_for() {
    let network = Links { default: Speed { latency: 0.02, bandwidth: None }, ..Links::default() };
    let size = Size::new(2, MICROBATCHES);
    let options = AutoOptions { warm_up: 0, measured: 1, gain: 1.0, ..AutoOptions::default() };
    let mut auto = AutoPipeline::new(ordered(size).delayed(network), size, options).unwrap();
    let (loss, (expected, ..)) = (auto.step(Text::new(MICROBATCHES).batch(), 1e-2).unwrap().loss, train(size, options));
    assert_eq!(loss, expected[0]);
    let Decision::Kept { planned, seconds, .. } = auto.decision() else { panic!("{}", auto.decision()) };
    let links = planned.best.profile.links();
    assert!([(0, 1), (1, 0)].into_iter().all(|(from, to)| links.link(from, to).latency >= 0.02), "{links:?}");
    // There and back, at least.
    assert!(*seconds >= 0.04 && planned.best.candidate.seconds >= 0.04);
}
