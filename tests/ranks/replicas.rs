//! Data-parallel replicas whose ranks are processes compute what threads and the plain loop compute, bit for bit,
//! with whole and with sharded parameters.

use crate::cases::{Case, Stack, range, read, sizes};
use crate::parity::{Proof, assert_same, prove};
use burn::optim::AdamWConfig;
use burn::tensor::Device;
use burn_pipeline::schedule::Size;
use burn_pipeline::train::{Builder, Pipeline};
use burn_pipeline_mpi::Mpi;
use pipeline_tests::reference::Reference;
use std::time::Duration;

const RATE: f64 = 1e-2;
const REPLICAS: usize = 2;
const MICROBATCHES: usize = 4;

fn builder(schedule: &str, ranks: usize, chunks: usize, sharded: bool) -> Builder {
    Pipeline::builder()
        .schedule(schedule, Size { ranks, chunks, microbatches: MICROBATCHES })
        .devices(vec![Device::flex()])
        .stages(Stack::stage)
        .optimizer(|| AdamWConfig::new().init())
        .data_parallel(REPLICAS)
        .sharded(sharded)
        .gathered_stages(1)
        .timeout(Duration::from_secs(60))
}

/// The loss, the ranks of the timeline and all weights of each step; then the gradients of two batches.
type Trace = (Vec<(f64, usize, Vec<Vec<f32>>)>, Vec<Vec<f32>>);

fn trace(case: &Stack, pipeline: &mut Pipeline) -> Trace {
    let mut steps = Vec::new();
    for _ in 0..2 {
        let report = pipeline.step(case.batch(), RATE).unwrap();
        let weights = pipeline.weights().unwrap().iter().flatten().map(read).collect();
        steps.push((report.loss, report.timeline.ranks, weights));
    }
    pipeline.accumulate(case.batch()).unwrap();
    pipeline.accumulate(case.batch()).unwrap();
    let gradients = pipeline.take_gradients().unwrap();
    (steps, gradients.iter().flatten().map(|g| g.as_ref().map(read).unwrap_or_default()).collect())
}

/// Some schedules, with even and uneven batches.
pub(crate) fn parity(mpi: &Mpi, sharded: bool) {
    let ranks = mpi.ranks() / REPLICAS;
    let mut beside = mpi.link(Device::flex()).unwrap();
    let mut proofs: Vec<Proof> = Vec::new();
    let schedules = [("GPipe", 1), ("1F1B", 1), ("Interleaved1F1B", 2), ("ZBVZeroBubble", 2)];
    for (schedule, chunks) in schedules {
        for samples in [8, 13, 7] {
            let case = Stack::new(samples);
            let place = format!("{schedule}, {samples} samples, sharded: {sharded}");
            let link = mpi.link(Device::flex()).unwrap();
            let mut pipeline = builder(schedule, ranks, chunks, sharded).build_rank(Box::new(link)).unwrap();
            let processes = trace(&case, &mut pipeline);
            drop(pipeline);
            assert_same(&mut beside, &processes, &place);
            let all = mpi.ranks();
            proofs.push(Box::new(move || {
                let threads = trace(&case, &mut builder(schedule, ranks, chunks, sharded).build().unwrap());
                assert!(processes == threads, "{place}: processes {processes:?}, threads {threads:?}");
                let sizes = sizes(samples, (MICROBATCHES * REPLICAS).min(samples));
                let half = sizes.len().div_ceil(REPLICAS);
                let parts = [(0..half).collect(), (half..sizes.len()).collect()];
                let mut reference = Reference::new(case.model());
                for (step, (loss, ranks, weights)) in processes.0.into_iter().enumerate() {
                    let loss_of = |model: &_, i: usize| case.loss(model, range(&sizes, i));
                    let expected = reference.step_in_parts(&sizes, &parts, RATE, None, loss_of);
                    assert_eq!((loss, ranks), (expected.loss, all), "{place}, step {step}");
                    assert_eq!(weights, reference.weights(), "{place}, step {step}");
                }
            }));
        }
    }
    prove(mpi, proofs);
}
