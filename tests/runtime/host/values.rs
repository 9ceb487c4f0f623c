//! Values that the host changes between steps, and counters that a forward advances, give the plain loop's numbers
//! under every schedule, captured or not, recomputed or not.

use super::model::{Host, LAYERS, Part, SAMPLES, WIDTH, batch, loss, stage, tensor};
use crate::cases::read;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use burn_pipeline::schedule::{Chunks, Size, all};
use burn_pipeline::stage::{Accumulation, SplitBackward, Stage};
use burn_pipeline::train::{Builder, Pipeline};
use pipeline_tests::reference::{Reference, whole};
use std::sync::Arc;

const RATE: f64 = 1e-2;
const STEPS: usize = 4;
const MICROBATCHES: usize = 8;

fn builder(schedule: &str, chunks: usize, host: &Arc<Host>, counts: bool, recomputed: bool) -> Builder {
    let (size, host) = (Size { ranks: 2, chunks, microbatches: MICROBATCHES }, host.clone());
    let builder = Pipeline::builder().schedule(schedule, size).devices(vec![Device::flex()]);
    let builder = builder.optimizer(|| AdamWConfig::new().init()).accumulation(Accumulation::Ordered);
    builder.stages(move |at| stage(at, &host, counts).recomputed(recomputed))
}

/// Losses and weights after each step, of the plain loop.
fn plain(counts: bool) -> Vec<(f64, Vec<Vec<f32>>)> {
    let host = Arc::new(Host::default());
    let mut reference = Reference::new(Part::new(&whole(), &host, counts));
    let rows = SAMPLES / MICROBATCHES;
    let step = |step: usize| {
        host.set(step);
        let (x, target) = (tensor(2 * step, SAMPLES), tensor(2 * step + 1, SAMPLES));
        let cut = |x: &Tensor<2>, i: usize| x.clone().narrow(0, i * rows, rows).autodiff();
        let given = reference.step(&[rows; MICROBATCHES], RATE, None, |model, i| {
            loss(&host, model.forward(cut(&x, i), ()), cut(&target, i))
        });
        reference.model = reference.model.clone().after_step(&[]);
        (given.loss, reference.weights())
    };
    (0..STEPS).map(step).collect()
}

fn piped(builder: &Builder, host: &Host) -> Vec<(f64, Vec<Vec<f32>>)> {
    let mut pipeline = builder.clone().build().unwrap();
    let step = |step: usize| {
        host.set(step);
        let loss = pipeline.step(batch(step), RATE).unwrap().loss;
        (loss, pipeline.weights().unwrap().iter().flatten().map(read).collect())
    };
    (0..STEPS).map(step).collect()
}

#[test]
fn what_the_host_changes_is_read_anew_by_every_schedule() {
    assert_eq!((LAYERS % 4, WIDTH), (0, 4));
    let expected = plain(false);
    for schedule in all().into_iter().filter(|schedule| schedule.info().name != "ForwardOnly") {
        let name = schedule.info().name;
        let chunks = if let Chunks::Exactly(chunks) = schedule.info().chunks { chunks } else { 2 };
        for (split, recomputed) in
            [(SplitBackward::Auto, false), (SplitBackward::Captured, false), (SplitBackward::Captured, true)]
        {
            let host = Arc::new(Host::default());
            let builder = builder(name, chunks, &host, false, recomputed).split(split);
            assert_eq!(piped(&builder, &host), expected, "{name}, {split:?}, recomputed: {recomputed}");
        }
    }
}

#[test]
fn a_layer_that_counts_its_forwards_counts_those_of_the_plain_loop() {
    let expected = plain(true);
    for (name, chunks) in [("GPipe", 1), ("1F1B", 1), ("Interleaved1F1B", 2), ("ZBH1", 1), ("ZBVZeroBubble", 2)] {
        for (split, recomputed) in [(SplitBackward::Auto, false), (SplitBackward::Captured, true)] {
            let host = Arc::new(Host::default());
            let builder = builder(name, chunks, &host, true, recomputed).split(split);
            assert_eq!(piped(&builder, &host), expected, "{name}, {split:?}, recomputed: {recomputed}");
        }
    }
}
