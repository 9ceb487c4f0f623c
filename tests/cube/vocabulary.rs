//! A vocabulary-parallel model on two ranks of one CubeCL device, compared with one rank on it and with the plain
//! loop.

#[allow(dead_code, reason = "the tests of vocabularies use all of it")]
#[path = "../vocabulary/model.rs"]
mod model;
#[allow(dead_code, reason = "as above")]
#[path = "../vocabulary/plain.rs"]
mod whole;

/// The model of the other tests with fewer blocks, because matmuls are slow here.
mod plain {
    pub(super) use super::whole::{Block, Trained, block, cross_entropy, data, norm, position, scores, token};

    pub(super) const BLOCKS: usize = 2;
}

use crate::groups::Trained;
use crate::{coarser, devices, is_fast, turn};
use burn::optim::SgdConfig;
use burn::tensor::Device;
use burn_pipeline::stage::SplitBackward;
use burn_pipeline::{Batch, Size};
use model::{Parallel, TIED, builder, weights};
use pipeline_tests::reference::Reference;
use plain::{BLOCKS, data};
use whole::{Plain, plain_weights};

const SAMPLES: usize = 4;
const MICROBATCHES: usize = 2;
const STEPS: usize = 2;
const RATE: f64 = 0.05;

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
    Trained { losses, weights: plain_weights(&reference.model).into_values().flatten().collect() }
}

fn trained(parallel: Parallel, device: &Device, ranks: usize, split: SplitBackward) -> Trained {
    let builder = builder(parallel, ("1F1B", 1), ranks, MICROBATCHES)
        .schedule("1F1B", Size::new(ranks, MICROBATCHES))
        .devices(vec![device.clone()])
        .split(split);
    let mut pipeline = builder.build().unwrap();
    let (tokens, targets) = data(SAMPLES);
    let batch = || Batch::new(tokens.clone().to_device(device)).target(targets.clone().to_device(device));
    let losses = (0..STEPS).map(|_| pipeline.step(batch(), RATE).unwrap().loss as f32).collect();
    Trained { losses, weights: weights(&mut pipeline).into_values().flatten().collect() }
}

#[test]
fn a_tied_vocabulary_on_one_device_trains_as_one_rank_and_the_plain_loop_do() {
    let _turn = turn();
    for device in devices().iter().filter(|device| is_fast(device)) {
        let expected = plain_loop(device);
        assert!(expected.losses[1] < expected.losses[0], "the loss does not fall: {:?}", expected.losses);
        for split in [SplitBackward::Eager, SplitBackward::Captured] {
            for ranks in [1, 2] {
                let got = trained(TIED, device, ranks, split);
                got.assert_close(&expected, coarser(device), &format!("{ranks} ranks, {split:?} on {device:?}"));
            }
        }
    }
}
