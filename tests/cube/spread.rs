//! A vocabulary that is spread over two ranks on one CubeCL device, against one rank on it and the plain loop.

#[allow(dead_code, reason = "the tests of vocabularies use all of it")]
#[path = "../vocabulary/model.rs"]
mod model;
#[allow(dead_code, reason = "as above")]
#[path = "../vocabulary/plain.rs"]
mod whole;

/// The layers of the other tests, and fewer blocks: products are what takes time here.
mod plain {
    pub(super) use super::whole::{Block, Trained, block, cross_entropy, data, norm, position, scores, token};

    pub(super) const BLOCKS: usize = 2;
}

use crate::{assert_close, devices, turn};
use burn::optim::SgdConfig;
use burn::tensor::Device;
use burn_pipeline::stage::SplitBackward;
use burn_pipeline::{Batch, Size};
use model::{Spread, TIED, builder, weights};
use pipeline_tests::reference::Reference;
use plain::{BLOCKS, data};
use std::collections::BTreeMap;
use whole::{Plain, plain_weights};

const SAMPLES: usize = 4;
const MICROBATCHES: usize = 2;
const STEPS: usize = 2;
const RATE: f64 = 0.5;

type Trained = (Vec<f32>, BTreeMap<String, Vec<f32>>);

fn plain_loop(device: &Device) -> Trained {
    let model = Plain::tied_on(&device.clone().autodiff(), BLOCKS);
    let mut reference = Reference::resumed(model, SgdConfig::new().init());
    let (tokens, targets) = data(SAMPLES);
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
    (losses, plain_weights(&reference.model))
}

fn trained(spread: Spread, device: &Device, ranks: usize, split: SplitBackward) -> Trained {
    let builder = builder(spread, ("1F1B", 1), ranks, MICROBATCHES)
        .schedule("1F1B", Size::new(ranks, MICROBATCHES))
        .devices(vec![device.clone()])
        .split(split);
    let mut pipeline = builder.build().unwrap();
    let (tokens, targets) = data(SAMPLES);
    let batch = || Batch::new(tokens.clone().to_device(device)).target(targets.clone().to_device(device));
    let losses = (0..STEPS).map(|_| pipeline.step(batch(), RATE).unwrap().loss as f32).collect();
    (losses, weights(&mut pipeline))
}

#[test]
fn a_tied_vocabulary_on_one_device_trains_as_one_rank_and_the_plain_loop_do() {
    let _turn = turn();
    for device in devices() {
        let expected = plain_loop(&device);
        assert!(expected.0[1] < expected.0[0] - 0.01, "it learns: {:?}", expected.0);
        for split in [SplitBackward::Eager, SplitBackward::Captured] {
            let one = trained(TIED, &device, 1, split);
            let two = trained(TIED, &device, 2, split);
            for (ranks, got) in [(1, one), (2, two)] {
                let place = format!("{ranks} ranks, {split:?} on {device:?}");
                assert_close(&got.0, &expected.0, &place);
                assert_eq!(got.1.keys().collect::<Vec<_>>(), expected.1.keys().collect::<Vec<_>>(), "{place}");
                for (name, weights) in &got.1 {
                    assert_close(weights, &expected.1[name], &format!("{place}, {name}"));
                }
            }
        }
    }
}
