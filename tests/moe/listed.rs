//! The model as a list of layers has the losses, observations and weights of its stages, bit for bit, unless shared
//! experts or a relation bias add gradients in another order.

use crate::cases::{Got, Text, ahead, builder, config, distance, floats, plain, rich, sizes};
use crate::parity::assert_close;
use burn::optim::SgdConfig;
use burn_pipeline::cost::Partition;
use burn_pipeline::payload::AnyTensor;
use burn_pipeline::schedule::{Size, by_name};
use burn_pipeline::stage::{Batch, SplitBackward};
use burn_pipeline::train::Builder;
use burn_pipeline_moe::router::Capacity;
use pipeline_examples::moe::gpt::{Injection, MoeGptConfig};
use pipeline_tests::device::few;

const SCHEDULES: [(&str, usize); 6] =
    [("GPipe", 1), ("1F1B", 1), ("Interleaved1F1B", 2), ("ZBH1", 1), ("ZBVZeroBubble", 2), ("DualPipeV", 2)];
const MICROBATCHES: usize = 4;
const SAMPLES: usize = 8;
const STEPS: u64 = 2;

/// Pipeline ranks, replicas and members of a tensor-parallel group.
type Grid = (usize, usize, usize);

fn staged(config: &MoeGptConfig, (name, chunks): (&str, usize), (ranks, replicas, members): Grid) -> Builder {
    let size = Size { ranks, chunks, microbatches: MICROBATCHES / replicas };
    let builder = builder(by_name(name).unwrap().as_ref(), size, config, |part, _| part);
    let builder = builder.optimizer(|| SgdConfig::new().init()).clip_norm(0.5);
    builder.data_parallel(replicas).tensor_parallel(members)
}

/// The same pipeline over the list, cut at the same blocks. Before them are the embedding and the relation bias, after
/// them the modules of tokens ahead and the head.
fn listed(config: &MoeGptConfig, schedule: (&str, usize), grid: Grid) -> Builder {
    let (blocks, stages) = (config.pattern.len(), grid.0 * schedule.1);
    let starts = sizes(blocks, stages).into_iter().scan(2, |end, size| {
        *end += size;
        Some(*end)
    });
    let boundaries: Vec<usize> = starts.take(stages - 1).collect();
    let cut = Partition::from_boundaries(blocks + 4, &boundaries).unwrap();
    staged(config, schedule, grid).layers(config.model().unwrap()).cut(cut)
}

/// Losses, norms, observations and, for each stage, its weights.
type Trained = (Vec<(f64, Option<f64>, Vec<Vec<f64>>)>, Vec<Vec<Vec<f32>>>);

fn trained(builder: Builder, batch: impl Fn(&Text) -> Batch) -> Trained {
    let mut pipeline = builder.build().unwrap();
    let steps = (1..=STEPS).map(|step| {
        let report = pipeline.step(batch(&Text::new(step, SAMPLES)), 1.0).unwrap();
        (report.loss, report.gradient_norm, report.observed)
    });
    let steps = steps.collect();
    let stages = pipeline.weights().unwrap();
    (steps, stages.iter().map(|stage| stage.iter().map(floats).collect()).collect())
}

fn assert_equal(config: &MoeGptConfig, schedule: (&str, usize), grid: Grid, engine: impl Fn(Builder) -> Builder) {
    let of_stages = trained(engine(staged(config, schedule, grid)), Text::batch);
    let of_layers = trained(engine(listed(config, schedule, grid)), Text::of_list);
    let place = format!("{schedule:?} on {grid:?}");
    assert_eq!(of_layers.0, of_stages.0, "{place}");
    assert!(of_layers.1 == of_stages.1, "{place}: weights");
}

#[test]
fn a_list_of_every_kind_of_block_equals_its_stages() {
    for split in [SplitBackward::Eager, SplitBackward::Captured] {
        for schedule in few(SCHEDULES.to_vec(), 2) {
            assert_equal(&config().with_bias_rate(0.01), schedule, (2, 1, 1), |builder| builder.split(split));
        }
    }
}

#[test]
fn tokens_ahead_of_a_list_equal_those_of_its_stages() {
    for (split, schedule) in [(SplitBackward::Eager, ("1F1B", 1)), (SplitBackward::Captured, ("ZBVZeroBubble", 2))] {
        assert_equal(&ahead().with_bias_rate(0.01), schedule, (2, 1, 1), |builder| builder.split(split));
    }
}

#[test]
fn a_list_can_inject_the_losses_of_its_last_stage_alone() {
    for injection in [Injection::LastStage, Injection::Nowhere] {
        assert_equal(&config().with_injection(injection), ("Interleaved1F1B", 2), (2, 1, 1), |builder| builder);
    }
}

#[test]
fn experts_of_a_list_that_replicas_share_equal_those_of_its_stages() {
    let config = |capacity| config().with_capacity(capacity).with_expert_parallel(true);
    for grid in [(2, 2, 1), (1, 2, 2)] {
        for schedule in [("1F1B", 1), ("ZBVZeroBubble", 2)] {
            for split in [SplitBackward::Eager, SplitBackward::Captured] {
                assert_equal(&config(Capacity::Factor(0.7)), schedule, grid, |builder| builder.split(split));
            }
            assert_equal(&config(Capacity::Dropless), schedule, grid, |builder| builder.split(SplitBackward::Auto));
        }
    }
}

#[test]
fn a_layer_says_why_its_stage_is_not_captured() {
    let config = config().with_capacity(Capacity::Dropless).with_expert_parallel(true);
    let mut pipeline = listed(&config, ("ZBH1", 1), (2, 2, 1)).split(SplitBackward::Auto).build().unwrap();
    pipeline.step(Text::new(1, SAMPLES).of_list(), 1.0).unwrap();
    for (stage, report) in pipeline.engines().unwrap() {
        assert!(!report.captured && report.reason.contains("largest load"), "stage {stage:?}: {}", report.reason);
    }
}

/// A step of a list, as the plain loop's.
fn step_of_list(builder: Builder, config: &MoeGptConfig) -> Got {
    let mut pipeline = builder.clip_norm(f64::MAX).build().unwrap();
    let report = pipeline.accumulate(Text::new(1, SAMPLES).of_list()).unwrap();
    let observed = report.observed.iter().map(|numbers| config.read(numbers)).collect();
    let named = pipeline.named_weights().unwrap().into_iter().flatten();
    let names: Vec<String> = named.map(|mut weight| weight.names.remove(0)).collect();
    let gradients: Vec<_> = pipeline.take_gradients().unwrap().into_iter().flatten().collect();
    assert_eq!(names.len(), gradients.len());
    let numbers = |gradient: Option<AnyTensor>| gradient.as_ref().map(floats).unwrap_or_default();
    Got { gradients: names.into_iter().zip(gradients.into_iter().map(numbers)).collect(), observed, loss: report.loss }
}

/// Stages compute the relation bias each for itself, a list once, so gradients of its table are summed in another
/// order.
#[test]
fn a_list_with_enrichments_equals_the_plain_loop_up_to_rounding() {
    let config = rich();
    let expected = plain(&config, &[SAMPLES], MICROBATCHES);
    for schedule in [("GPipe", 1), ("ZBVZeroBubble", 2)] {
        let got = step_of_list(listed(&config, schedule, (2, 1, 1)), &config);
        assert_close(&distance(&config, &got, &expected), &format!("{schedule:?}"));
    }
}

/// Router, experts and shared experts read the same values. A list injects losses after each block, which changes the
/// order in which Burn adds the three gradients.
#[test]
fn shared_experts_of_a_list_equal_the_plain_loop_up_to_rounding() {
    let config = config().with_shared(2).with_capacity(Capacity::Factor(0.7)).with_expert_parallel(true);
    let expected = plain(&config, &[SAMPLES], MICROBATCHES);
    for grid in [(2, 1, 1), (2, 2, 1), (1, 2, 2)] {
        let got = step_of_list(listed(&config, ("ZBVZeroBubble", 2), grid), &config);
        assert_close(&distance(&config, &got, &expected), &format!("{grid:?}"));
    }
}
