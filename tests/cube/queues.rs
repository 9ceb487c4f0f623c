//! Ranks that share a device give one rank's numbers to the last bit, run after run, where each stage has one copy.
//!
//! ```sh
//! RUNS=20 cargo test --features pipeline-tests/wgpu --test cube queues -- --nocapture     # all such families, 20 times
//! ```

use crate::{devices, turn};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_pipeline::plan::PlacementKind;
use burn_pipeline::schedule::{Size, all, by_name};
use burn_pipeline::stage::{Accumulation, Batch, SplitBackward};
use burn_pipeline::train::Pipeline;
use pipeline_examples::gpt::GptConfig;

const SEQUENCE: usize = 16;
const VOCABULARY: usize = 32;
const MICROBATCHES: usize = 4;
const STEPS: usize = 3;

/// Families of the ordinary test: ranks hold one stage, several in a loop, or several in a V.
const SOME: [&str; 3] = ["1F1B", "Interleaved1F1B", "ZBVZeroBubble"];

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
fn trained(device: &Device, family: &str, size: Size, split: SplitBackward) -> (Vec<f64>, Vec<f32>) {
    let mut pipeline = Pipeline::builder()
        .schedule(family, size)
        .devices(vec![device.clone()])
        .split(split)
        .accumulation(Accumulation::Ordered)
        .optimizer(|| AdamWConfig::new().init())
        .stages(|at| config().stage(at))
        .build()
        .unwrap();
    let step = |step| pipeline.step(batch(device, step), 1e-2).unwrap().loss;
    let mut losses: Vec<f64> = (0..STEPS).map(step).collect();
    losses.push(pipeline.eval(batch(device, STEPS)).unwrap().loss.unwrap());
    let weights = pipeline.weights().unwrap().into_iter().flatten();
    (losses, weights.flat_map(|weight| weight.to_data().unwrap().iter::<f32>().collect::<Vec<_>>()).collect())
}

/// Has the family one copy of each stage? The others are refused where ranks share a device.
fn has_one_copy(family: &str) -> bool {
    by_name(family).unwrap().family().placement != PlacementKind::Bidirectional
}

/// The sizes on two ranks that a family has.
fn sizes(family: &str) -> Vec<Size> {
    let of = |chunks| Size { ranks: 2, chunks, microbatches: MICROBATCHES };
    let schedule = by_name(family).unwrap();
    let trains =
        |size: &Size| schedule.build(*size).is_ok_and(|plan| plan.placement().stages() <= config().all_layers());
    [1, 2, 4].map(of).into_iter().filter(trains).collect()
}

/// CubeCL's CPU runtime takes minutes for the products of this model.
fn is_fast(device: &Device) -> bool {
    !format!("{device:?}").contains("Cpu")
}

#[test]
fn ranks_that_share_a_device_give_one_ranks_numbers() {
    let _turn = turn();
    let runs = std::env::var("RUNS").ok().map(|runs| runs.parse::<usize>().unwrap());
    let families: Vec<&str> = match runs {
        None => SOME.to_vec(),
        Some(_) => all()
            .iter()
            .map(|schedule| schedule.family().name)
            .filter(|name| *name != "ForwardOnly" && has_one_copy(name))
            .collect(),
    };
    let mut count = 0;
    for device in devices().into_iter().filter(is_fast) {
        for split in [SplitBackward::Eager, SplitBackward::Captured] {
            let one = trained(&device, "GPipe", Size::new(1, MICROBATCHES), split);
            for family in &families {
                for size in sizes(family) {
                    for run in 0..runs.unwrap_or(1) {
                        let got = trained(&device, family, size, split);
                        let place = format!("{family}, {split:?}, {size:?} on {device:?}, run {run}");
                        assert_eq!(got.0, one.0, "{place}: losses");
                        assert!(got.1 == one.1, "{place}: weights");
                        count += 1;
                    }
                }
            }
        }
    }
    println!("{count} runs, all equal to one rank's");
}
