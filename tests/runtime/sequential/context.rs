//! A layer that reads its context computes what the plain loop does with the same numbers, in every plan.

use super::weights;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor, activation::tanh};
use burn_pipeline::layers::{ForwardContext, LayerContext, Model};
use burn_pipeline::schedule::{Chunks, Schedule, Size, all};
use burn_pipeline::stage::SplitBackward;
use burn_pipeline::{Accumulation, Batch, Builder, Layer, Pipeline, Sequential, init_seeded};
use pipeline_tests::device::device;
use pipeline_tests::noise::noise;
use pipeline_tests::reference::Reference;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

const WIDTH: usize = 4;
const LAYERS: usize = 8;
const MICROBATCHES: usize = 4;

#[derive(Module, Debug)]
struct Whole {
    layers: Vec<Linear>,
}

/// A layer whose output depends on its index and its microbatch.
fn scaled(own: &Linear, x: Tensor<2>, layer: usize, microbatch: usize) -> Tensor<2> {
    tanh(own.forward(x)) * (1.0 + microbatch as f64) * (0.5 + layer as f64)
}

fn linear(device: &Device) -> Linear {
    LinearConfig::new(WIDTH, WIDTH).init(device)
}

fn loss(y: Tensor<2>, wanted: Tensor<2>) -> Tensor<1> {
    (y - wanted).square().mean()
}

type Seen = Arc<Mutex<BTreeSet<(usize, usize, usize)>>>;

fn model(seen: &Seen) -> Model {
    let seen = seen.clone();
    let forward = move |own: &Linear, (x, at): (Tensor<2>, ForwardContext)| {
        seen.lock().unwrap().insert((at.layer, at.stage, at.microbatch()));
        scaled(own, x, at.layer, at.microbatch())
    };
    let make = |at: &LayerContext| linear(&at.device);
    Sequential::new()
        .then(Layer::new("first", make, Linear::forward))
        .repeat(LAYERS - 1, Layer::new("scaled", make, forward).with_context())
        .loss(loss)
}

fn data() -> [Tensor<2>; 2] {
    let values = |seed| Tensor::<1>::from_floats(&*noise(seed, 2 * MICROBATCHES * WIDTH), &device());
    [4, 9].map(|seed| values(seed).reshape([2 * MICROBATCHES, WIDTH]))
}

fn plain() -> (Vec<f64>, Vec<Vec<f32>>) {
    let device = device().autodiff();
    let layers = (0..LAYERS as u64).map(|layer| init_seeded(layer, &device, linear)).collect();
    let mut plain = Reference::resumed(Whole { layers }, SgdConfig::new().init());
    let [x, wanted] = data();
    let part = |tensor: &Tensor<2>, i| tensor.clone().narrow(0, 2 * i, 2).autodiff();
    let of = |whole: &Whole, i: usize| {
        let x = whole.layers[0].forward(part(&x, i));
        let y = (1..LAYERS).fold(x, |x, layer| scaled(&whole.layers[layer], x, layer, i));
        loss(y, part(&wanted, i))
    };
    let losses = (0..2).map(|_| plain.step(&[2; MICROBATCHES], 1e-3, None, of).loss).collect();
    (losses, pipeline_tests::reference::weights(&plain.model))
}

fn builder(model: Model, schedule: &dyn Schedule, replicas: usize) -> Builder {
    let chunks = if let Chunks::Exactly(chunks) = schedule.info().chunks { chunks } else { 2 };
    Pipeline::builder()
        .layers(model)
        .schedule(schedule.info().name, Size { ranks: 2, chunks, microbatches: MICROBATCHES / replicas })
        .data_parallel(replicas)
        .devices(vec![device()])
        .accumulation(Accumulation::Ordered)
        .optimizer(|| SgdConfig::new().init())
}

#[test]
fn a_layer_that_scales_by_its_microbatch_equals_the_plain_loop_under_every_schedule() {
    let (losses, expected) = plain();
    let [x, wanted] = data();
    let batch = || Batch::new(x.clone()).target(wanted.clone());
    for schedule in all().into_iter().filter(|schedule| schedule.info().name != "ForwardOnly") {
        for (split, recomputed, replicas) in [
            (SplitBackward::Eager, false, 1),
            (SplitBackward::Auto, false, 1),
            (SplitBackward::Auto, true, 1),
            (SplitBackward::Eager, true, 2),
            (SplitBackward::Auto, false, 2),
        ] {
            let place = format!("{}, {split:?}, {recomputed}, {replicas}", schedule.info().name);
            let model = model(&Seen::default()).recomputed(recomputed);
            let mut pipeline = match builder(model, schedule.as_ref(), replicas).split(split).build() {
                // Two microbatches are too few for some schedules.
                Err(_) if replicas == 2 => continue,
                built => built.unwrap(),
            };
            for loss in &losses {
                assert_eq!(pipeline.step(batch(), 1e-3).unwrap().loss, *loss, "{place}");
            }
            assert!(weights(&mut pipeline) == expected, "{place}");
        }
    }
}

#[test]
fn a_layer_is_told_its_index_its_stage_and_its_microbatch() {
    let seen = Seen::default();
    let one_f_one_b = burn_pipeline::schedule::by_name("1F1B").unwrap();
    let built = builder(model(&seen), one_f_one_b.as_ref(), 1).schedule("1F1B", Size::new(2, MICROBATCHES));
    let mut pipeline = built.build().unwrap();
    let [x, wanted] = data();
    let expected: BTreeSet<_> =
        (1..LAYERS).flat_map(|layer| (0..MICROBATCHES).map(move |i| (layer, layer / (LAYERS / 2), i))).collect();
    pipeline.eval(Batch::new(x.clone()).target(wanted.clone())).unwrap();
    assert_eq!(std::mem::take(&mut *seen.lock().unwrap()), expected);
    pipeline.step(Batch::new(x).target(wanted), 0.0).unwrap();
    assert_eq!(*seen.lock().unwrap(), expected);
}
