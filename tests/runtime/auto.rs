//! A schedule that is chosen by measured costs: whatever is chosen, the numbers stay.

use crate::cases::{Case, Text, read};
use crate::parity::builder;
use burn_pipeline::planner::Way;
use burn_pipeline::schedule::{Size, by_name};
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
        let Decision::Switched { planned, seconds } = switched.decision() else { panic!("{:?}", switched.decision()) };
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
