//! A schedule chosen by measured costs: whatever is chosen, the numbers do not change.

mod cuts;

use crate::cases::{Case, Text, range, read, sizes};
use crate::parity::builder;
use crate::skips::{Pictures, unet};
use burn::tensor::Device;
use burn_pipeline::cost::{LinkCost, LinkCosts, Profile, StageCost};
use burn_pipeline::link::Threads;
use burn_pipeline::plan::PlacementKind;
use burn_pipeline::planner::Strategy;
use burn_pipeline::schedule::{OneFOneB, Size, by_name};
use burn_pipeline::stage::{Accumulation, Names};
use burn_pipeline::train::{AutoError, AutoOptions, AutoPipeline, Builder, CheckpointError, Choice, Decision};
use pipeline_tests::reference::Reference;

const STEPS: usize = 6;
const MICROBATCHES: usize = 6;
const RATE: f64 = 1e-2;
/// The maximum number of steps until the decision is final: trials of plans that are too close to tell continue.
const LIMIT: usize = 160;

fn ordered(size: Size) -> Builder {
    let any = by_name("1F1B").unwrap();
    builder::<Text>(any.as_ref(), Size { chunks: 1, ..size }).accumulation(Accumulation::Ordered)
}

/// The losses of all steps, and the weights after them.
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
        let short = AutoOptions { warm_up: 1, measured: 2, trial: 0, ..AutoOptions::default() };
        // The best plan is never twice as slow as the current one, so a switch is certain. And it never takes zero
        // time.
        let (losses, weights, switched) = train(size, AutoOptions { gain: -1.0, ..short.clone() });
        let (expected, same, kept) = train(size, AutoOptions { gain: 1.0, ..short });
        assert!(matches!(kept.decision(), Decision::Kept(_)), "{:?}", kept.decision());
        let Decision::Switched(Choice { planned, seconds, .. }) = switched.decision() else {
            panic!("{:?}", switched.decision())
        };
        assert!(planned.best.seconds <= *seconds * (1.0 + 1e-9), "a worse plan than the current one was chosen");
        assert_eq!(losses, expected, "{size:?}");
        assert_eq!(weights, same, "{size:?}");
    }
}

#[test]
fn running_statistics_keep_plans_with_copies_of_a_stage_from_being_chosen() {
    let size = Size::new(2, 4);
    let options = AutoOptions { warm_up: 0, measured: 1, gain: -1.0, trial: 0, ..AutoOptions::default() };
    let copies = |stage: fn(&burn_pipeline::train::StageContext) -> burn_pipeline::stage::StageBox| {
        let mut auto =
            AutoPipeline::new(pipeline_tests::noisy::builder("1F1B").seed(1).stages(stage), size, options.clone())
                .unwrap();
        (0..3).for_each(|step| drop(auto.step(pipeline_tests::noisy::batch(step), 1e-2).unwrap()));
        let Decision::Switched(Choice { planned, .. }) = auto.decision() else { panic!("{}", auto.decision()) };
        planned.candidates.iter().any(|candidate| candidate.placement == PlacementKind::Bidirectional)
    };
    assert!(!copies(pipeline_tests::noisy::stage), "running statistics");
    assert!(copies(pipeline_tests::noisy::drawing), "nothing that a forward changes");
}

#[test]
fn the_plan_that_was_chosen_is_the_one_that_runs() {
    let size = Size { ranks: 2, chunks: 2, microbatches: MICROBATCHES };
    let options = AutoOptions { warm_up: 0, measured: 1, gain: -1.0, trial: 0, ..AutoOptions::default() };
    let (_, _, mut auto) = train(size, options);
    let runs = auto.pipeline().plan(MICROBATCHES).unwrap();
    let Decision::Switched(Choice { planned, .. }) = auto.decision() else { panic!("{:?}", auto.decision()) };
    assert_eq!(runs.plan().rows(), planned.plan.plan().rows());
    assert!(!matches!(planned.best.strategy, Strategy::OneDevice | Strategy::DataParallel));
}

#[test]
fn a_pipeline_whose_parameters_have_no_names_of_their_own_stays_as_it_is() {
    let size = Size::new(2, MICROBATCHES);
    let anonymous = |at: &burn_pipeline::train::StageContext| Text::stage(at).named(Names::default());
    let options = AutoOptions { warm_up: 0, measured: 1, gain: -1.0, trial: 0, ..AutoOptions::default() };
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
        let options = AutoOptions { warm_up: 1, measured: 2, gain: -1.0, trial: 0, ..AutoOptions::default() };
        let (expected, weights, _) = train(size, AutoOptions { gain: 1.0, ..options.clone() });
        let threads = Threads::new(ranks);
        let run = |rank: usize| {
            let link = Box::new(threads.link(rank, Device::flex()));
            let mut auto = AutoPipeline::new_rank(ordered(size), size, options.clone(), link).unwrap();
            let step = |_| auto.step(Text::new(MICROBATCHES).batch(), 1e-2).unwrap().loss;
            let losses: Vec<f64> = (0..STEPS).map(step).collect();
            let trained: Vec<Vec<f32>> = auto.pipeline().weights().unwrap().iter().flatten().map(read).collect();
            let runs = auto.pipeline().plan(MICROBATCHES).unwrap();
            let Decision::Switched(Choice { planned, seconds, .. }) = auto.decision() else {
                panic!("{}", auto.decision())
            };
            assert_eq!(runs.plan().rows(), planned.plan.plan().rows());
            ((losses, trained), (runs, planned.profile.clone(), *seconds, auto.decision().to_string()))
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
fn ranks_that_would_choose_with_other_options_are_refused_at_the_start() {
    let (size, threads) = (Size::new(2, MICROBATCHES), Threads::new(2));
    let start = |rank: usize| {
        let options = AutoOptions { measured: 3 + 2 * rank, ..AutoOptions::default() };
        let link = Box::new(threads.link(rank, Device::flex()));
        AutoPipeline::new_rank(ordered(size), size, options, link).unwrap_err().to_string()
    };
    let start = &start;
    let refused: Vec<String> = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..2).map(|rank| scope.spawn(move || start(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    for refused in refused {
        assert!(refused.contains("chooses its schedule with") && refused.contains("measured: 5"), "{refused}");
    }
    // A warm-up without an end never plans.
    let options = AutoOptions { warm_up: usize::MAX, ..AutoOptions::default() };
    let mut auto = AutoPipeline::new(ordered(size), size, options).unwrap();
    auto.step(Text::new(MICROBATCHES).batch(), 1e-2).unwrap();
}

#[test]
fn ranks_that_measured_otherwise_go_on_with_the_median() {
    let threads = Threads::new(3);
    let profile = |seconds: f64| {
        let links = LinkCosts { default: LinkCost { latency: seconds / 8.0, bandwidth: None }, ..LinkCosts::default() };
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
    // The ranks of one process have one caller.
    let mut alone = builder::<Text>(&OneFOneB, Size::new(3, 3)).build().unwrap();
    assert_eq!(alone.agree_on_profile(&profile(0.1)).unwrap(), profile(0.1));
}

#[test]
fn a_slow_network_is_measured_and_planned_for() {
    let network = LinkCosts { default: LinkCost { latency: 0.02, bandwidth: None }, ..LinkCosts::default() };
    let size = Size::new(2, MICROBATCHES);
    let options = AutoOptions { warm_up: 0, measured: 1, gain: 1.0, ..AutoOptions::default() };
    let mut auto = AutoPipeline::new(ordered(size).delayed(network), size, options.clone()).unwrap();
    let (loss, (expected, ..)) = (auto.step(Text::new(MICROBATCHES).batch(), 1e-2).unwrap().loss, train(size, options));
    assert_eq!(loss, expected[0]);
    let Decision::Kept(Choice { planned, seconds, .. }) = auto.decision() else { panic!("{}", auto.decision()) };
    let links = planned.profile.links();
    assert!([(0, 1), (1, 0)].into_iter().all(|(from, to)| links.link(from, to).latency >= 0.02), "{links:?}");
    // There and back, at least.
    assert!(*seconds >= 0.04 && planned.best.seconds >= 0.04);
}

/// Costs that omit a slow network, and memory for one microbatch per rank: the plan chosen by them runs one
/// microbatch after the other.
fn misleading(stages: usize) -> (Profile, AutoOptions) {
    let stage = StageCost { forward: 1.0, input: Some(1.0), weight: Some(1.0), ..StageCost::default() };
    let stage = StageCost { activation_bytes: 1.0, ..stage };
    let options = AutoOptions { warm_up: 1, measured: 2, trial: 2, gain: f64::NEG_INFINITY, ..AutoOptions::default() };
    (Profile::new(vec![stage; stages], LinkCosts::default()).unwrap(), AutoOptions { cap: Some(1.0), ..options })
}

/// Messages that take far longer than everything else: schedules differ in how often ranks wait for one.
fn slow() -> LinkCosts {
    LinkCosts { default: LinkCost { latency: 0.02, bandwidth: None }, ..LinkCosts::default() }
}

/// Trains until the decision is final, and a few steps more. Losses and weights are those of the plain loop.
fn train_to_the_end(auto: &mut AutoPipeline) -> Vec<f64> {
    let (mut losses, mut after) = (Vec::new(), 0);
    while after < 2 {
        losses.push(auto.step(Text::new(MICROBATCHES).batch(), RATE).unwrap().loss);
        after += usize::from(!matches!(auto.decision(), Decision::Measuring | Decision::Trying(_)));
        assert!(losses.len() < LIMIT, "{}", auto.decision());
    }
    assert_plain(&losses, &weights(auto));
    losses
}

fn weights(auto: &mut AutoPipeline) -> Vec<Vec<f32>> {
    auto.pipeline().weights().unwrap().iter().flatten().map(read).collect()
}

/// Asserts that losses and weights equal those of the plain loop on one device bit for bit.
fn assert_plain(losses: &[f64], weights: &[Vec<f32>]) {
    let (case, cut) = (Text::new(MICROBATCHES), sizes(MICROBATCHES, MICROBATCHES));
    let mut reference = Reference::new(case.model());
    for (step, loss) in losses.iter().enumerate() {
        let expected = reference.step(&cut, RATE, None, |model, i| case.loss(model, range(&cut, i)));
        assert_eq!(*loss, expected.loss, "step {step}");
    }
    assert_eq!(weights, reference.weights());
}

/// Asserts that the current plan is the one that the trials chose, whatever was measured: the winner of the last
/// won trial.
fn assert_follows_trials(auto: &mut AutoPipeline) {
    let (runs, switches) = (auto.current_plan().unwrap(), auto.switches());
    let (choice, kept) = match auto.decision() {
        Decision::Kept(choice) => (choice, true),
        Decision::Switched(choice) => (choice, false),
        other => panic!("{other}"),
    };
    let won: Vec<_> = choice.trials.iter().filter(|trial| trial.is_won()).collect();
    assert_eq!(kept, won.is_empty(), "{choice:?}");
    assert_eq!(&choice.running, won.last().map_or(&choice.first, |trial| &trial.challenger));
    if won.last().is_some_and(|trial| choice.planned.best.to_string() == trial.challenger) {
        assert_eq!(runs.plan().rows(), choice.planned.plan.plan().rows());
    }
    // Two switches to the other plan and back per round, and up to three rounds per trial.
    let (rounds, rest) = ((switches - won.len()) / 4, (switches - won.len()) % 4);
    let trials = choice.trials.len();
    assert!(rest == 0 && (trials..=3 * trials).contains(&rounds), "{switches} switches in {trials} trials");
    for trial in &choice.trials {
        let seconds = [trial.running_seconds, trial.challenger_seconds, trial.spread];
        assert!(seconds.iter().all(|seconds| *seconds >= 0.0) && trial.is_won() == (trial.saved > trial.spread));
        let verdict = if trial.is_won() { "  taken: " } else { "  left: " };
        assert!(auto.decision().to_string().contains(verdict), "{}", auto.decision());
    }
}

#[test]
fn a_choice_that_takes_longer_than_predicted_is_tried_and_changes_no_number() {
    let size = Size::new(2, MICROBATCHES);
    let (profile, options) = misleading(2);
    let mut auto = AutoPipeline::new(ordered(size).delayed(slow()), size, options).unwrap().with_profile(profile);
    let first = auto.current_plan().unwrap();
    train_to_the_end(&mut auto);
    assert_follows_trials(&mut auto);
    let (Decision::Kept(Choice { first: tried, planned, trials, .. })
    | Decision::Switched(Choice { first: tried, planned, trials, .. })) = auto.decision()
    else {
        panic!("{}", auto.decision())
    };
    assert_eq!((tried.as_str(), trials.len()), (first.plan().name(), 1));
    // By its costs, it was the best within that cap.
    assert_eq!(planned.simulation.peak_activations(), 1.0);
}

#[test]
fn a_choice_by_measured_costs_runs_if_it_won_its_trial() {
    // A V sends two values where a loop of two stages per rank sends three.
    let size = Size { ranks: 2, chunks: 2, microbatches: MICROBATCHES };
    let options = AutoOptions { warm_up: 1, measured: 2, trial: 4, gain: f64::NEG_INFINITY, ..AutoOptions::default() };
    let mut auto = AutoPipeline::new(ordered(size).delayed(slow()), size, options).unwrap();
    train_to_the_end(&mut auto);
    assert_follows_trials(&mut auto);
}

#[test]
fn smaller_batches_are_no_part_of_the_trial() {
    let size = Size::new(2, MICROBATCHES);
    let options = AutoOptions { warm_up: 0, measured: 2, gain: 1.0, ..AutoOptions::default() };
    let mut auto = AutoPipeline::new(ordered(size), size, options).unwrap();
    for samples in [MICROBATCHES, MICROBATCHES - 1, 1] {
        auto.step(Text::new(samples).batch(), 1e-2).unwrap();
        assert!(matches!(auto.decision(), Decision::Measuring), "{}", auto.decision());
    }
    auto.step(Text::new(MICROBATCHES).batch(), 1e-2).unwrap();
    assert!(matches!(auto.decision(), Decision::Kept(_)), "{}", auto.decision());
}

/// The results of each of some ranks in one process.
fn on_ranks<T: Send>(ranks: usize, run: impl Fn(Box<dyn burn_pipeline::link::Link>) -> T + Sync) -> Vec<T> {
    let (threads, run) = (Threads::new(ranks), &run);
    std::thread::scope(|scope| {
        let spawn = |rank| {
            let link = Box::new(threads.link(rank, Device::flex()));
            scope.spawn(move || run(link))
        };
        let ranks: Vec<_> = (0..ranks).map(spawn).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn ranks_of_their_own_decide_alike() {
    let size = Size::new(3, MICROBATCHES);
    let outcomes = on_ranks(3, |link| {
        let (profile, options) = misleading(3);
        let builder = ordered(size).delayed(slow());
        let mut auto = AutoPipeline::new_rank(builder, size, options, link).unwrap().with_profile(profile);
        let losses = train_to_the_end(&mut auto);
        assert_follows_trials(&mut auto);
        (losses, auto.decision().to_string())
    });
    assert!(outcomes.iter().all(|outcome| *outcome == outcomes[0]), "{outcomes:?}");
}

#[test]
fn a_u_net_is_planned_with_its_long_connections_and_its_numbers_stay() {
    for (ranks, chunks) in [(3, 1), (2, 2)] {
        let size = Size { ranks, chunks, microbatches: 4 };
        let edges = unet().edges(ranks * chunks);
        let builder = || {
            let builder = builder::<Pictures>(&OneFOneB, Size { chunks: 1, ..size });
            let builder = builder.accumulation(Accumulation::Ordered);
            edges.iter().fold(builder, |builder, &(from, to)| builder.skip(from, to))
        };
        let train = |gain: f64| {
            let options = AutoOptions { warm_up: 1, measured: 2, trial: 0, gain, ..AutoOptions::default() };
            let mut auto = AutoPipeline::new(builder(), size, options).unwrap();
            let losses: Vec<f64> = (0..5).map(|_| auto.step(Pictures::new(4).batch(), 1e-2).unwrap().loss).collect();
            (losses, auto)
        };
        let ((losses, mut switched), (expected, _)) = (train(-1.0), train(1.0));
        assert_eq!(losses, expected, "{size:?}");
        let runs = switched.current_plan().unwrap();
        let Decision::Switched(Choice { planned, .. }) = switched.decision() else { panic!("{}", switched.decision()) };
        let skips: Vec<(usize, usize)> = planned.plan.plan().skips().iter().map(|&edge| edge.into()).collect();
        assert_eq!(skips, edges);
        assert!(planned.profile.stages().iter().any(|stage| stage.skip_bytes > 0.0));
        assert_eq!(runs.plan().skips(), planned.plan.plan().skips());
    }
}
