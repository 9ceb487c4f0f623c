//! Stages that several ranks hold together, all on one CubeCL device, against one rank on it and the plain loop.
//!
//! Two ranks add a sum in two parts, so their numbers are one rank's up to rounding; among themselves grids and engines have the same bits.

#[allow(dead_code, reason = "the tests of groups use all of it")]
#[path = "../tensor/model.rs"]
mod model;
#[allow(dead_code, reason = "as above")]
#[path = "../tensor/plain.rs"]
mod plain;

use crate::{assert_close, devices, turn};
use burn::optim::SgdConfig;
use burn::tensor::Device;
use burn_pipeline::stage::{Accumulation, SplitBackward};
use burn_pipeline::{Batch, Size};
use model::{Grid, Signal, builder_of, weights};
use pipeline_tests::reference::Reference;
use plain::{Config, Plain};

/// One block for each of two stages: few and small products, which are what takes time here.
const TINY: Config = Config { width: 8, heads: 2, hidden: 8, vocab: 8, seq: 4, blocks: 2, seed: 3, sequence: false };
const SAMPLES: usize = 4;
const MICROBATCHES: usize = 2;
const STEPS: usize = 2;
const RATE: f64 = 0.5;

/// The losses of some steps, and the weights after them.
#[derive(Clone, PartialEq, Debug)]
struct Trained {
    losses: Vec<f32>,
    weights: Vec<f32>,
}

fn plain_loop(config: Config, device: &Device) -> Trained {
    let mut reference = Reference::resumed(config.plain_on(&device.clone().autodiff()), SgdConfig::new().init());
    let (tokens, targets) = config.data(SAMPLES);
    let (tokens, targets) = (tokens.to_device(device), targets.to_device(device));
    let size = SAMPLES / MICROBATCHES;
    let step = |_| {
        let loss = |model: &Plain, i: usize| {
            let rows = i * size..(i + 1) * size;
            let (tokens, targets) = (tokens.clone().slice([rows.clone()]), targets.clone().slice([rows]));
            model.loss(tokens.autodiff(), targets.autodiff())
        };
        reference.step(&[size; MICROBATCHES], RATE, None, loss).loss as f32
    };
    let losses = (0..STEPS).map(step).collect();
    Trained { losses, weights: reference.weights().concat() }
}

fn trained(config: Config, device: &Device, grid: Grid, split: SplitBackward) -> Trained {
    let builder = builder_of(config, ("1F1B", 1), grid)
        .schedule("1F1B", Size::new(grid.0, MICROBATCHES))
        .devices(vec![device.clone()])
        .accumulation(Accumulation::Ordered)
        .split(split);
    let mut pipeline = builder.build().unwrap();
    let (tokens, targets) = config.data(SAMPLES);
    let batch =
        || Batch::new(Signal::Tokens(tokens.clone().to_device(device))).target(targets.clone().to_device(device));
    let losses = (0..STEPS).map(|_| pipeline.step(batch(), RATE).unwrap().loss as f32).collect();
    for (stage, report) in pipeline.engines().unwrap() {
        assert_eq!(report.captured, split == SplitBackward::Captured, "stage {stage}: {}", report.reason);
    }
    Trained { losses, weights: weights(&mut pipeline).concat() }
}

fn train_as_one_rank_does(config: Config, device: &Device) {
    let expected = plain_loop(config, device);
    assert!(expected.losses[1] < expected.losses[0] - 0.01, "it learns: {:?}", expected.losses);
    let mut first: Option<Trained> = None;
    for split in [SplitBackward::Eager, SplitBackward::Captured] {
        let one = trained(config, device, (1, 1, 1), split);
        for grid in [(1, 1, 2), (2, 1, 2)] {
            let place = format!("{grid:?}, {split:?}, {config:?} on {device:?}");
            let got = trained(config, device, grid, split);
            for expected in [&one, &expected] {
                assert_close(&got.losses, &expected.losses, &place);
                assert_close(&got.weights, &expected.weights, &place);
            }
            let first = first.get_or_insert_with(|| got.clone());
            assert!(got == *first, "{place}: other bits, losses {:?} and {:?}", got.losses, first.losses);
        }
    }
}

#[test]
fn groups_on_one_device_train_as_one_rank_and_the_plain_loop_do() {
    let _turn = turn();
    for device in devices() {
        train_as_one_rank_does(TINY, &device);
    }
}

#[test]
fn groups_that_cut_the_sequence_train_as_one_rank_and_the_plain_loop_do() {
    let _turn = turn();
    for device in devices() {
        train_as_one_rank_does(Config { sequence: true, ..TINY }, &device);
    }
}
