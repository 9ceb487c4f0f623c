//! Every schedule on several grids, with and without a capacity, under every engine, compared with the plain loop
//! over the whole batch.

use super::{Grid, MICROBATCHES, SAMPLES, on, parallel_config};
use crate::cases::{Text, builder, by_name_in_model, cut_up, distance, floats, pipelined, plain, step_of};
use crate::parity::assert_close;
use burn::optim::{ModuleOptimizer, SgdConfig};
use burn_pipeline::Builder;
use burn_pipeline::schedule::{Size, by_name};
use burn_pipeline::stage::SplitBackward;
use burn_pipeline_moe::router::Capacity;
use pipeline_examples::moe::gpt::MoeGptConfig;
use pipeline_tests::reference::{Reference, weights, whole};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

const CAPACITIES: [Capacity; 2] = [Capacity::Dropless, Capacity::Factor(0.7)];

/// Whole and split backwards, one and two chunks, loops and Vs.
const SCHEDULES: [(&str, usize); 5] =
    [("GPipe", 1), ("1F1B", 1), ("Interleaved1F1B", 2), ("ZBVZeroBubble", 2), ("DualPipeV", 2)];

/// Compares every schedule on these grids with the plain loop over a batch of `samples` samples.
fn assert_schedules(config: &MoeGptConfig, samples: usize, grids: &[Grid], engine: impl Fn(Builder) -> Builder) {
    let expected = plain(config, &[samples], MICROBATCHES);
    for &grid in grids {
        // Two directions need two ranks.
        let both_ways = (grid.0 == 2).then_some(("DualPipe", 1));
        for schedule in SCHEDULES.into_iter().chain(both_ways) {
            let got = pipelined(engine(on(config, schedule, grid)), &[samples], config);
            let place = format!("{:?}, {schedule:?} on {grid:?}, {samples} samples", config.capacity);
            assert_close(&distance(config, &got, &expected), &place);
        }
    }
}

#[test]
fn experts_over_replicas_equal_one_device_with_and_without_a_capacity() {
    for capacity in CAPACITIES {
        assert_schedules(&parallel_config(capacity), SAMPLES, &[(1, 2, 1), (2, 2, 1), (1, 4, 1)], |builder| builder);
    }
}

#[test]
fn experts_over_replicas_and_a_group_equal_one_device() {
    for capacity in CAPACITIES {
        assert_schedules(&parallel_config(capacity), SAMPLES, &[(1, 2, 2), (2, 2, 2)], |builder| builder);
    }
}

#[test]
fn without_a_capacity_replicas_may_have_microbatches_of_other_sizes() {
    // Microbatches of 3, 2, 2 and 2 samples.
    assert_schedules(&parallel_config(Capacity::Dropless), 9, &[(2, 2, 1), (1, 2, 2)], |builder| builder);
}

#[test]
fn captured_and_compiled_experts_over_replicas_equal_one_device() {
    let config = parallel_config(Capacity::Factor(0.7));
    for (compile, grid) in [(false, (2, 2, 1)), (true, (1, 2, 1)), (true, (2, 2, 2))] {
        assert_schedules(&config, SAMPLES, &[grid], |builder| builder.split(SplitBackward::Captured).compile(compile));
    }
    let mut pipeline = on(&config, ("ZBVZeroBubble", 2), (1, 2, 1)).split(SplitBackward::Captured).build().unwrap();
    step_of_one(&mut pipeline);
    for (stage, report) in pipeline.engines().unwrap() {
        assert!(report.captured, "stage {stage:?}: {}", report.reason);
    }
}

#[test]
fn eager_forwards_with_a_seed_take_no_turns_where_replicas_wait_inside_of_them() {
    let eager = |builder: Builder| builder.split(SplitBackward::Eager).seed(7).timeout(Duration::from_secs(20));
    assert_schedules(&parallel_config(CAPACITIES[1]), SAMPLES, &[(2, 2, 1)], eager);
    // It is unknown what unrecorded forwards draw.
    let mut pipeline = eager(on(&parallel_config(Capacity::Dropless), ("1F1B", 1), (1, 2, 1))).build().unwrap();
    let error = pipeline.accumulate(Text::new(1, SAMPLES).batch()).unwrap_err().to_string();
    assert!(error.contains("largest load"), "{error}");
}

#[test]
fn replicas_that_spread_experts_may_shard_all_else() {
    for (capacity, split) in [(CAPACITIES[0], SplitBackward::Eager), (CAPACITIES[1], SplitBackward::Captured)] {
        let sharded = |builder: Builder| builder.split(split).sharded(true);
        assert_schedules(&parallel_config(capacity), SAMPLES, &[(1, 2, 1), (2, 2, 2)], sharded);
    }
}

#[test]
fn without_a_capacity_stages_say_why_they_are_not_captured() {
    let config = parallel_config(Capacity::Dropless);
    let mut pipeline = on(&config, ("ZBH1", 1), (2, 2, 1)).split(SplitBackward::Auto).build().unwrap();
    step_of_one(&mut pipeline);
    for (stage, report) in pipeline.engines().unwrap() {
        assert!(!report.captured && report.reason.contains("largest load"), "stage {stage:?}: {}", report.reason);
    }
}

fn step_of_one(pipeline: &mut burn_pipeline::Pipeline) {
    pipeline.accumulate(Text::new(1, SAMPLES).batch()).unwrap();
}

#[test]
fn recomputed_stages_exchange_again() {
    let config = parallel_config(Capacity::Factor(0.7));
    let model = config.clone();
    let builder = on(&config, ("1F1B", 1), (2, 2, 1));
    let builder = builder.stages(move |at| model.stage(model.part(at).unwrap(), at).unwrap().recomputed(true));
    let got = pipelined(builder, &[SAMPLES], &config);
    assert_close(&distance(&config, &got, &plain(&config, &[SAMPLES], MICROBATCHES)), "recomputed");
}

#[test]
fn an_evaluation_is_that_of_one_rank() {
    for capacity in CAPACITIES {
        let config = parallel_config(capacity);
        let evaluated = |grid| {
            let mut pipeline = on(&config, ("1F1B", 1), grid).build().unwrap();
            let report = pipeline.eval(Text::new(1, SAMPLES).batch()).unwrap();
            (report.loss.unwrap(), report.observed)
        };
        let ((loss, observed), (expected, of_one)) = (evaluated((2, 2, 1)), evaluated((1, 1, 1)));
        assert!((loss - expected).abs() < 1e-5, "{loss} for {expected}");
        for (got, expected) in observed.iter().flatten().zip(of_one.iter().flatten()) {
            assert!((got - expected).abs() < 1e-5, "{got} for {expected}");
        }
    }
}

#[test]
fn several_batches_make_one_step() {
    let config = parallel_config(Capacity::Dropless);
    let batches = [SAMPLES, 12, SAMPLES];
    let got = step_of(on(&config, ("ZBVZeroBubble", 2), (2, 2, 1)).build().unwrap(), &batches, &config);
    assert_close(&distance(&config, &got, &plain(&config, &batches, MICROBATCHES)), "accumulated");
}

const STEPS: u64 = 4;
const RATE: f64 = 1.0;
/// Smaller than the norms of all steps.
const CLIP: f64 = 0.5;

/// Main losses, norms of gradients, and the weights by name.
struct Trained {
    losses: Vec<f64>,
    norms: Vec<f64>,
    weights: BTreeMap<String, Vec<f32>>,
}

fn sgd() -> ModuleOptimizer {
    SgdConfig::new().init()
}

/// The plain loop.
fn looped(config: &MoeGptConfig) -> Trained {
    let mut reference = Reference::resumed(config.part(&whole()).unwrap(), sgd());
    let pieces = cut_up(&[SAMPLES], MICROBATCHES);
    let sizes: Vec<usize> = pieces.iter().map(|(_, samples)| samples.len()).collect();
    let (mut losses, mut norms) = (Vec::new(), Vec::new());
    for step in 1..=STEPS {
        let (text, sum) = (Text::new(step, SAMPLES), RefCell::new(0.0));
        let stepped = reference.step(&sizes, RATE, Some(CLIP), |model, i| {
            let (main, auxiliary, _) = text.losses(config, model, pieces[i].1.clone());
            *sum.borrow_mut() += main.clone().into_scalar::<f32>() as f64 * sizes[i] as f64;
            main + auxiliary.unwrap()
        });
        losses.push(sum.into_inner() / SAMPLES as f64);
        norms.push(stepped.norm);
    }
    Trained { losses, norms, weights: by_name_in_model(config, [reference.weights()]) }
}

fn piped(config: &MoeGptConfig, builder: Builder) -> Trained {
    let mut pipeline = builder.optimizer(sgd).clip_norm(CLIP).build().unwrap();
    let (mut losses, mut norms) = (Vec::new(), Vec::new());
    for step in 1..=STEPS {
        let report = pipeline.step(Text::new(step, SAMPLES).batch(), RATE).unwrap();
        losses.push(report.loss);
        norms.push(report.gradient_norm.unwrap());
    }
    let stages = pipeline.weights().unwrap();
    let stages = stages.iter().map(|stage| stage.iter().map(floats).collect());
    Trained { losses, norms, weights: by_name_in_model(config, stages) }
}

#[test]
fn weights_after_several_steps_are_those_of_one_device_with_every_weight_in_the_norm_once() {
    for capacity in CAPACITIES {
        let config = parallel_config(capacity);
        let expected = looped(&config);
        assert!(expected.norms.iter().all(|&norm| norm > CLIP), "nothing is clipped: {:?}", expected.norms);
        for grid in [(1, 2, 1), (2, 2, 1), (1, 4, 1), (2, 2, 2)] {
            // With two chunks, gradient sums of one stage are in flight during the other one's exchanges.
            for (schedule, sharded) in [
                (("1F1B", 1), false),
                (("Interleaved1F1B", 2), false),
                (("Interleaved1F1B", 2), true),
                (("ZBVZeroBubble", 2), false),
            ] {
                let place = format!("{capacity:?}, {schedule:?} on {grid:?}, sharded: {sharded}");
                let got = piped(&config, on(&config, schedule, grid).sharded(sharded));
                for (got, expected) in got.losses.iter().zip(&expected.losses) {
                    assert!((got - expected).abs() < 1e-5, "{place}: loss {got} for {expected}");
                }
                for (got, expected) in got.norms.iter().zip(&expected.norms) {
                    assert!((got - expected).abs() < 1e-5 * expected, "{place}: norm {got} for {expected}");
                }
                assert_eq!(got.weights.keys().collect::<Vec<_>>(), expected.weights.keys().collect::<Vec<_>>());
                for ((name, got), expected) in got.weights.iter().zip(expected.weights.values()) {
                    assert_eq!(got.len(), expected.len(), "{place}: {name}");
                    let off = got.iter().zip(expected).fold(0.0f32, |max, (a, b)| max.max((a - b).abs()));
                    assert!(off < 2e-6, "{place}: {name} is {off:e} off");
                }
            }
        }
    }
}

#[test]
fn the_weights_of_experts_move_enough_to_be_compared() {
    let config = parallel_config(Capacity::Dropless);
    let before = by_name_in_model(&config, [weights(&config.part(&whole()).unwrap())]);
    for (name, trained) in looped(&config).weights {
        let moved = trained.iter().zip(&before[&name]).fold(0.0f32, |max, (a, b)| max.max((a - b).abs()));
        assert!(!name.contains("experts.") || moved > 1e-5, "{name} moved by {moved:e}");
    }
}

#[test]
fn replicas_hold_their_share_of_the_experts_alone() {
    let config = parallel_config(Capacity::Dropless);
    let size = Size { ranks: 1, chunks: 1, microbatches: 2 };
    let bytes = |replicas: usize| {
        let builder = builder(by_name("GPipe").unwrap().as_ref(), size, &config, |part, _| part);
        let mut pipeline = builder.data_parallel(replicas).build().unwrap();
        let report = pipeline.accumulate(Text::new(1, SAMPLES).batch()).unwrap();
        report.weight_bytes.iter().sum::<usize>()
    };
    // Six layers of four experts, each with three matrices of 8 by 4 numbers; each of two replicas holds half of
    // them.
    assert_eq!(bytes(1) - bytes(2), 6 * 2 * 3 * 8 * 4 * 4);
}
