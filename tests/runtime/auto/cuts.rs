//! Another cut, another number of microbatches, recomputation: stages move during training, and the numbers do not
//! change.

use super::{LIMIT, MICROBATCHES, RATE, assert_follows_trials, on_ranks, ordered, slow, train_to_the_end, weights};
use crate::cases::{Case, Text, range, sizes};
use crate::parity::builder;
use crate::skips::{Pictures, unet};
use burn::tensor::Device;
use burn_pipeline::cost::{LinkCosts, Partition, Profile, StageCost};
use burn_pipeline::link::TcpLink;
use burn_pipeline::planner::Strategy;
use burn_pipeline::schedule::{OneFOneB, Size};
use burn_pipeline::stage::Accumulation;
use burn_pipeline::train::{AutoError, AutoOptions, AutoPipeline, Choice, Decision};
use pipeline_tests::reference::Reference;
use std::collections::BTreeSet;
use std::time::Duration;

/// The costs of the model's eight layers. The last one takes as long as the others together.
fn heavy_head() -> Profile {
    with_heavy_head(100.0)
}

fn with_heavy_head(weight_bytes: f64) -> Profile {
    let layer = |layer| {
        let seconds = if layer == 7 { 7.0 } else { 1.0 };
        let (input, weight) = (Some(seconds), Some(seconds));
        let layer = StageCost { forward: seconds, input, weight, activation_bytes: 10.0, ..StageCost::default() };
        StageCost { message_bytes: 1.0, weight_bytes, ..layer }
    };
    Profile::new((0..8).map(layer).collect(), LinkCosts::default()).unwrap()
}

/// Allows any cut of the model's layers, and runs the best predicted plan. Copies of all layers on one rank, which
/// would balance any cut, do not fit.
fn any_cut(ranks: usize) -> AutoOptions {
    let options = AutoOptions { warm_up: 1, measured: 1, trial: 0, layers: Some(8), ..AutoOptions::default() };
    AutoOptions { gain: f64::NEG_INFINITY, cap: Some(6400.0 / ranks as f64 - 50.0), ..options }
}

#[test]
fn another_cut_moves_weights_and_optimizer_state_and_changes_no_number() {
    for (ranks, chunks) in [(2, 1), (2, 2), (3, 1)] {
        let size = Size { ranks, chunks, microbatches: MICROBATCHES };
        let mut auto = AutoPipeline::new(ordered(size), size, any_cut(size.ranks)).unwrap().with_profile(heavy_head());
        let before = auto.pipeline().weights().unwrap();
        train_to_the_end(&mut auto);
        let after = auto.pipeline().weights().unwrap();
        let Decision::Switched(Choice { planned, .. }) = auto.decision() else { panic!("{}", auto.decision()) };
        let best = &planned.best;
        assert_ne!(best.partition, Partition::even(8, ranks * chunks).unwrap(), "{size:?}: {best}");
        assert_eq!(after.len(), best.partition.stages(), "{size:?}: {best}");
        // The last stage has fewer layers than before.
        assert!(after[after.len() - 1].len() < before[before.len() - 1].len(), "{size:?}: {best}");
        let runs = auto.current_plan().unwrap();
        let Decision::Switched(Choice { planned, .. }) = auto.decision() else { panic!("{}", auto.decision()) };
        assert_eq!(runs.plan().rows(), planned.plan.plan().rows());
    }
}

#[test]
fn two_cuts_take_turns_step_by_step_and_change_no_number() {
    let size = Size::new(2, MICROBATCHES);
    let options = AutoOptions { trial: 4, ..any_cut(size.ranks) };
    let mut auto = AutoPipeline::new(ordered(size), size, options).unwrap().with_profile(heavy_head());
    train_to_the_end(&mut auto);
    let (Decision::Kept(Choice { trials, .. }) | Decision::Switched(Choice { trials, .. })) = auto.decision() else {
        panic!("{}", auto.decision())
    };
    // The planner's best plan, and 1F1B.
    assert_eq!(trials.len(), 2, "{}", auto.decision());
    assert!(trials[1].challenger.starts_with("1F1B"), "{}", trials[1]);
    // Two switches to the other plan and back, repeated while the two were too close to tell.
    let won = trials.iter().filter(|trial| trial.is_won()).count();
    let rounds = (auto.switches() - won) / 4;
    assert_eq!(auto.switches(), rounds * 4 + won);
    assert!((2..=6).contains(&rounds), "{rounds}");
}

#[test]
fn stages_move_between_ranks_of_their_own() {
    for (ranks, chunks, tcp) in [(2, 1, false), (2, 1, true), (3, 2, true)] {
        let size = Size { ranks, chunks, microbatches: MICROBATCHES };
        let outcomes = on_ranks(ranks, |mut link| {
            if tcp {
                link = Box::new(TcpLink::by_link(link.as_mut(), Device::flex(), Duration::from_secs(30)).unwrap());
            }
            let auto = AutoPipeline::new_rank(ordered(size), size, any_cut(ranks), link).unwrap();
            let mut auto = auto.with_profile(heavy_head());
            train_to_the_end(&mut auto);
            let stages = auto.pipeline().weights().unwrap().len();
            let Decision::Switched(Choice { planned, .. }) = auto.decision() else { panic!("{}", auto.decision()) };
            assert_ne!(planned.best.partition, Partition::even(8, ranks * chunks).unwrap());
            assert_eq!(stages, planned.best.partition.stages());
            auto.decision().to_string()
        });
        assert!(outcomes.iter().all(|outcome| *outcome == outcomes[0]), "{outcomes:?}");
    }
}

#[test]
fn a_folder_that_cannot_be_made_leaves_training_as_it_was_on_all_ranks() {
    let size = Size::new(2, MICROBATCHES);
    let file = tempfile::NamedTempFile::new().unwrap();
    let outcomes = on_ranks(2, |link| {
        let options = AutoOptions { folder: Some(file.path().into()), ..any_cut(size.ranks) };
        let auto = AutoPipeline::new_rank(ordered(size), size, options, link).unwrap();
        let mut auto = auto.with_profile(heavy_head());
        train_to_the_end(&mut auto);
        let Decision::Failed(error) = auto.decision() else { panic!("{}", auto.decision()) };
        error.to_string()
    });
    assert!(outcomes.iter().all(|error| error.contains(&file.path().display().to_string())), "{outcomes:?}");
}

#[test]
fn stages_recompute_where_nothing_else_fits_under_the_cap() {
    let size = Size { ranks: 2, chunks: 2, microbatches: MICROBATCHES };
    // One microbatch leaves 40 bytes on a rank.
    let options = AutoOptions { cap: Some(35.0), recompute: true, ..any_cut(size.ranks) };
    let mut auto = AutoPipeline::new(ordered(size), size, options).unwrap().with_profile(with_heavy_head(0.0));
    train_to_the_end(&mut auto);
    let engines = auto.pipeline().engines().unwrap();
    let Decision::Switched(Choice { planned, .. }) = auto.decision() else { panic!("{}", auto.decision()) };
    assert!(!planned.best.recomputing.is_empty(), "{}", planned.best);
    for (stage, engine) in &engines {
        let recomputes = engine.reason.contains("recomputed");
        assert_eq!(recomputes, planned.best.recomputing.contains(&stage.index()), "{stage}: {}", engine.reason);
    }
    let without = AutoOptions { recompute: false, cap: Some(35.0), ..any_cut(size.ranks) };
    let mut auto = AutoPipeline::new(ordered(size), size, without).unwrap().with_profile(with_heavy_head(0.0));
    train_to_the_end(&mut auto);
    assert!(matches!(auto.decision(), Decision::Failed(AutoError::Planner(_))), "{}", auto.decision());
}

#[test]
fn layers_are_measured_and_other_numbers_of_microbatches_are_tried_and_change_numbers_by_rounding_alone() {
    let size = Size::new(2, MICROBATCHES);
    let options = AutoOptions { trial: 4, microbatches: vec![2, 3], layers: Some(8), ..AutoOptions::default() };
    let options = AutoOptions { warm_up: 1, measured: 2, gain: f64::NEG_INFINITY, ..options };
    let mut auto = AutoPipeline::new(ordered(size).delayed(slow()), size, options).unwrap();
    let (case, cut) = (Text::new(MICROBATCHES), sizes(MICROBATCHES, MICROBATCHES));
    let mut reference = Reference::new(case.model());
    let mut step = 0;
    while matches!(auto.decision(), Decision::Measuring | Decision::Trying(_)) {
        let report = auto.step(case.batch(), RATE).unwrap();
        let expected = reference.step(&cut, RATE, None, |model, i| case.loss(model, range(&cut, i))).loss;
        assert!((report.loss - expected).abs() < 5e-4, "step {step}: {} {expected}", report.loss);
        step += 1;
        assert!(step < LIMIT, "{}", auto.decision());
    }
    let (Decision::Kept(Choice { planned, .. }) | Decision::Switched(Choice { planned, .. })) = auto.decision() else {
        panic!("{}", auto.decision())
    };
    let numbers: BTreeSet<usize> = planned.candidates.iter().map(|candidate| candidate.microbatches).collect();
    assert_eq!(numbers, BTreeSet::from([2, 3, MICROBATCHES]), "{}", auto.decision());
    assert_follows_trials(&mut auto);
}

#[test]
fn a_factory_that_cannot_build_another_cut_leaves_training_as_it_was() {
    let size = Size::new(2, MICROBATCHES);
    let stubborn = |at: &burn_pipeline::train::StageContext| {
        assert!(at.layers(8).len() == 4, "four layers a stage or none");
        Text::stage(at)
    };
    let builder = || ordered(size).stages(stubborn);
    let mut auto = AutoPipeline::new(builder(), size, any_cut(size.ranks)).unwrap().with_profile(heavy_head());
    train_to_the_end(&mut auto);
    let Decision::Failed(AutoError::OtherStages { message, .. }) = auto.decision() else {
        panic!("{}", auto.decision())
    };
    assert!(message.contains("four layers a stage or none"), "{message}");
    let outcomes = on_ranks(2, |link| {
        let auto = AutoPipeline::new_rank(builder(), size, any_cut(size.ranks), link).unwrap();
        let mut auto = auto.with_profile(heavy_head());
        train_to_the_end(&mut auto);
        auto.decision().to_string()
    });
    assert!(outcomes.iter().all(|decision| decision.contains("four layers a stage or none")), "{outcomes:?}");
}

#[test]
fn a_cap_is_refused_where_nobody_knows_what_stages_hold() {
    let size = Size::new(2, MICROBATCHES);
    let options = AutoOptions { cap: Some(1e9), layers: None, ..any_cut(size.ranks) };
    let eager = ordered(size).split(burn_pipeline::stage::SplitBackward::Eager);
    let mut auto = AutoPipeline::new(eager, size, options).unwrap();
    train_to_the_end(&mut auto);
    assert!(matches!(auto.decision(), Decision::Failed(AutoError::UnknownBytes { .. })), "{}", auto.decision());
}

#[test]
fn a_u_net_is_cut_otherwise_and_its_long_connections_follow() {
    let (ranks, blocks) = (3, unet().blocks());
    let size = Size::new(ranks, 4);
    let seconds = |layer| if layer == 0 { 4.0 } else { 1.0 };
    let layer = |layer| StageCost { forward: seconds(layer), weight_bytes: 100.0, ..StageCost::default() };
    let profile = Profile::new((0..blocks).map(layer).collect(), LinkCosts::default()).unwrap();
    let builder = || {
        let builder = builder::<Pictures>(&OneFOneB, size).accumulation(Accumulation::Ordered);
        unet().edges(blocks).into_iter().fold(builder, |builder, (from, to)| builder.skip(from, to))
    };
    let train = |gain: f64| {
        let options = AutoOptions { layers: Some(blocks), gain, cap: Some(2350.0), ..any_cut(ranks) };
        let mut auto = AutoPipeline::new(builder(), size, options).unwrap().with_profile(profile.clone());
        let losses: Vec<f64> = (0..5).map(|_| auto.step(Pictures::new(4).batch(), 1e-2).unwrap().loss).collect();
        (losses, auto)
    };
    let ((losses, switched), (expected, kept)) = (train(-9.0), train(1.0));
    assert!(matches!(kept.decision(), Decision::Kept(_)), "{}", kept.decision());
    assert_eq!(losses, expected);
    let Decision::Switched(Choice { planned, .. }) = switched.decision() else { panic!("{}", switched.decision()) };
    assert_ne!(planned.best.partition, Partition::even(blocks, ranks).unwrap(), "{}", planned.best);
}

#[test]
fn smaller_batches_run_whatever_was_chosen() {
    let mut synthesised = 0;
    for (ranks, chunks, cap) in [(2, 1, None), (3, 1, None), (2, 2, Some(3150.0)), (3, 1, Some(2083.0))] {
        let size = Size { ranks, chunks, microbatches: MICROBATCHES };
        let options = AutoOptions { cap, ..any_cut(ranks) };
        let mut auto = AutoPipeline::new(ordered(size), size, options).unwrap().with_profile(heavy_head());
        let mut reference = Reference::new(Text::new(MICROBATCHES).model());
        for samples in [6, 6, 6, 5, 1, 4, 6, 2, 3] {
            let whole = Text::new(samples);
            let loss = auto.step(whole.batch(), RATE).unwrap().loss;
            let cut = sizes(samples, samples);
            let expected = reference.step(&cut, RATE, None, |model, i| whole.loss(model, range(&cut, i))).loss;
            assert_eq!(loss, expected, "{size:?}, {samples} samples: {}", auto.decision());
        }
        assert_eq!(weights(&mut auto), reference.weights());
        let Decision::Switched(Choice { planned, .. }) = auto.decision() else { panic!("{}", auto.decision()) };
        synthesised += usize::from(planned.best.strategy == Strategy::Synthesised);
    }
    assert!(synthesised > 0, "no schedule builds such a plan for another size");
}
