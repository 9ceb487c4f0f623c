//! Ranks that share a device give one rank's numbers to the last bit, run after run.
//!
//! ```sh
//! RUNS=20 cargo test --features pipeline-tests/wgpu --test cube queues -- --nocapture     # every family, 20 times
//! ```

use crate::{devices, turn};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_pipeline::schedule::{Size, all, by_name};
use burn_pipeline::stage::{Accumulation, Batch, SplitBackward};
use burn_pipeline::train::{Pipeline, SharedParameter};
use pipeline_examples::gpt::GptConfig;

const SEQUENCE: usize = 16;
const VOCABULARY: usize = 32;
const MICROBATCHES: usize = 4;
const STEPS: usize = 3;

/// What is trained: a plan, its data-parallel replicas, and how stages are run.
#[derive(Clone, Debug)]
struct Case {
    family: &'static str,
    size: Size,
    replicas: usize,
    split: SplitBackward,
    /// Are the tables of the embedding and of the head one parameter, which two ranks may hold?
    tied: bool,
}

fn config() -> GptConfig {
    GptConfig::new().with_d_model(32).with_layers(8).with_heads(2).with_seq(SEQUENCE).with_vocab(VOCABULARY)
}

/// Tokens that follow a rule, so that losses fall and each microbatch has its own.
fn batch(device: &Device, step: usize) -> Batch {
    let samples = 2 * MICROBATCHES;
    let token = |at: usize| ((at * at + 7 * at + 13 * step) % VOCABULARY) as i64;
    let tokens = |from: usize| {
        let values = (0..samples * SEQUENCE).map(|at| token(at + from)).collect();
        Tensor::<2, Int>::from_data(TensorData::new::<i64, _>(values, [samples, SEQUENCE]), device)
    };
    Batch::new(pipeline_examples::gpt::Signal::Tokens(tokens(0))).target(tokens(1))
}

/// The losses of all steps and of a batch that was not trained on, and all weights in the end.
fn trained(device: &Device, case: &Case) -> (Vec<f64>, Vec<f32>) {
    let mut builder = Pipeline::builder()
        .schedule(case.family, case.size)
        .data_parallel(case.replicas)
        .devices(vec![device.clone()])
        .split(case.split)
        .accumulation(Accumulation::Ordered)
        .optimizer(|| AdamWConfig::new().init())
        .stages(|at| config().stage(at));
    if case.tied {
        builder = builder.share(SharedParameter::new("table").at("embed.token.weight").at("head.scores.weight"));
    }
    let mut pipeline = builder.build().unwrap();
    let step = |step| pipeline.step(batch(device, step), 1e-2).unwrap().loss;
    let mut losses: Vec<f64> = (0..STEPS).map(step).collect();
    losses.push(pipeline.eval(batch(device, STEPS)).unwrap().loss.unwrap());
    let weights = pipeline.weights().unwrap().into_iter().flatten();
    (losses, weights.flat_map(|weight| weight.to_data().unwrap().iter::<f32>().collect::<Vec<_>>()).collect())
}

/// Each way in which ranks hand each other tensors, once: stages in a loop and in a V, copies of stages in both directions with a
/// parameter that both ranks hold, data-parallel replicas.
fn some(split: SplitBackward) -> Vec<Case> {
    let case = |family, chunks, replicas, tied| {
        let size = Size { ranks: 2, chunks, microbatches: MICROBATCHES / replicas };
        Case { family, size, replicas, split, tied }
    };
    vec![
        case("Interleaved1F1B", 2, 1, false),
        case("ZBVZeroBubble", 2, 1, false),
        case("Chimera", 1, 1, true),
        case("1F1B", 1, 2, false),
    ]
}

/// Every family at every size that it has on two ranks, with separate tables and with one.
fn every(split: SplitBackward) -> Vec<Case> {
    let families: Vec<_> = all().iter().map(|schedule| schedule.family().name).collect();
    let families = families.into_iter().filter(|name| *name != "ForwardOnly");
    let cases = families.flat_map(|family| {
        sizes(family)
            .into_iter()
            .flat_map(move |size| [false, true].map(|tied| Case { family, size, replicas: 1, split, tied }))
    });
    cases.chain(some(split)).collect()
}

/// The sizes on two ranks that a family has.
fn sizes(family: &str) -> Vec<Size> {
    let of = |chunks| Size { ranks: 2, chunks, microbatches: MICROBATCHES };
    let schedule = by_name(family).unwrap();
    let trains =
        |size: &Size| schedule.build(*size).is_ok_and(|plan| plan.placement().stages() <= config().all_layers());
    [1, 2, 4].map(of).into_iter().filter(trains).collect()
}

/// Is it a GPU, or what stands for one?
fn is_fast(device: &Device) -> bool {
    !format!("{device:?}").contains("Cpu")
}

#[test]
fn ranks_that_share_a_device_give_one_ranks_numbers() {
    let _turn = turn();
    let runs = std::env::var("RUNS").ok().map(|runs| runs.parse::<usize>().unwrap());
    let mut count = 0;
    for device in devices().into_iter().filter(is_fast) {
        for split in [SplitBackward::Eager, SplitBackward::Captured] {
            let cases = if runs.is_some() { every(split) } else { some(split) };
            let one = [false, true].map(|tied| {
                let size = Size::new(1, MICROBATCHES);
                trained(&device, &Case { family: "GPipe", size, replicas: 1, split, tied })
            });
            for run in 0..runs.unwrap_or(1) {
                for case in &cases {
                    let (got, one) = (trained(&device, case), &one[usize::from(case.tied)]);
                    assert_eq!(got.0, one.0, "{case:?} on {device:?}, run {run}: losses");
                    assert!(got.1 == one.1, "{case:?} on {device:?}, run {run}: weights");
                    count += 1;
                }
            }
        }
    }
    assert!(count > 0, "no device was tried");
    println!("{count} runs, all equal to one rank's");
}
