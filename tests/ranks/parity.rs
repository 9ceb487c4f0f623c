//! Ranks in processes compute what threads and the plain loop compute, bit for bit.
//!
//! The processes first run all configurations, then share the work of checking them.

use crate::TIMEOUT;
use crate::cases::{Case, Stack, Text, range, read, sizes};
use crate::tied;
use burn::optim::AdamWConfig;
use burn::tensor::Device;
use burn_pipeline::link::Link;
use burn_pipeline::schedule::{Chunks, Size, all, by_name};
use burn_pipeline::stage::Accumulation;
use burn_pipeline::train::{Builder, Pipeline};
use burn_pipeline_mpi::Mpi;
use pipeline_tests::reference::Reference;
use std::time::{Duration, Instant};

pub(crate) const RATE: f64 = 1e-2;
/// Small enough that gradients are clipped.
const CLIP: f64 = 0.05;

pub(crate) fn builder<C: Case>(name: &str, size: Size) -> Builder {
    Pipeline::builder()
        .schedule(name, size)
        .devices(vec![Device::flex()])
        .stages(C::stage)
        .optimizer(|| AdamWConfig::new().init())
        .accumulation(Accumulation::Ordered)
        .clip_norm(CLIP)
        .timeout(Duration::from_secs(60))
}

/// The results of a pipeline: the loss, the norm and all weights of each step; then the outputs of an evaluation.
#[derive(Debug, PartialEq)]
struct Trace {
    steps: Vec<(f64, Option<f64>, Vec<Vec<f32>>)>,
    gradients: Vec<Vec<f32>>,
    evaluation: (Option<f64>, usize),
}

fn trace<C: Case>(case: &C, pipeline: &mut Pipeline) -> Trace {
    let mut steps = Vec::new();
    for _ in 0..2 {
        let report = pipeline.step(case.batch(), RATE).unwrap();
        let weights = pipeline.weights().unwrap().iter().flatten().map(read).collect();
        let ranks = pipeline.placement().ranks();
        assert_eq!((report.peak_held.len(), report.timeline.ranks), (ranks, ranks));
        for rank in 0..ranks {
            assert!(report.timeline.events.iter().any(|event| event.rank == rank), "no events of rank {rank}");
        }
        steps.push((report.loss, report.gradient_norm, weights));
    }
    // Two batches that count as one.
    pipeline.accumulate(case.batch()).unwrap();
    pipeline.accumulate(case.batch()).unwrap();
    let gradients = pipeline.take_gradients().unwrap();
    let gradients = gradients.iter().flatten().map(|g| g.as_ref().map(read).unwrap_or_default()).collect();
    let evaluation = pipeline.eval(case.batch()).unwrap();
    Trace { steps, gradients, evaluation: (evaluation.loss, evaluation.samples) }
}

/// The results of a configuration on the processes, to be compared later with those of threads and the plain loop.
pub(crate) type Proof = Box<dyn FnOnce()>;

/// Each rank checks its part of the proofs. All ranks hold the same numbers, so each proof is checked once.
pub(crate) fn prove(mpi: &Mpi, proofs: Vec<Proof>) {
    proofs.into_iter().skip(mpi.rank()).step_by(mpi.ranks()).for_each(|proof| proof());
}

/// Asserts that all ranks hold the same numbers.
pub(crate) fn assert_same(link: &mut dyn Link, numbers: &impl std::fmt::Debug, place: &str) {
    let own = format!("{numbers:?}").into_bytes();
    let all = link.all_gather(own.clone(), Instant::now() + TIMEOUT).unwrap();
    assert!(all.iter().all(|other| *other == own), "{place}: ranks hold different numbers");
}

fn parity<C: Case>(mpi: &Mpi, beside: &mut dyn Link, case: C, name: &'static str, size: Size, samples: usize) -> Proof {
    let place = format!("{name}, {size:?}, {samples} samples");
    let link = mpi.link(Device::flex()).unwrap();
    let mut pipeline = builder::<C>(name, size).build_rank(Box::new(link)).unwrap();
    let processes = trace(&case, &mut pipeline);
    drop(pipeline);
    assert_same(beside, &processes, &place);
    Box::new(move || {
        let threads = trace(&case, &mut builder::<C>(name, size).build().unwrap());
        assert!(processes == threads, "{place}: processes {processes:?}, threads {threads:?}");
        let sizes = sizes(samples, size.microbatches.min(samples));
        let mut reference = Reference::new(case.model());
        for (step, (loss, norm, weights)) in processes.steps.into_iter().enumerate() {
            let expected = reference.step(&sizes, RATE, Some(CLIP), |model, i| case.loss(model, range(&sizes, i)));
            assert_eq!((loss, norm), (expected.loss, Some(expected.norm)), "{place}, step {step}");
            assert_eq!(weights, reference.weights(), "{place}, step {step}");
        }
    })
}

/// Every schedule that can be built for this many ranks.
pub(crate) fn every_schedule(mpi: &Mpi) {
    let ranks = mpi.ranks();
    let mut beside = mpi.link(Device::flex()).unwrap();
    let mut proofs = Vec::new();
    for schedule in all().into_iter().filter(|schedule| schedule.info().name != "ForwardOnly") {
        let info = schedule.info();
        let chunks = match info.chunks {
            Chunks::Exactly(chunks) => chunks,
            Chunks::Any => 2,
        };
        for microbatches in [1, 4, 7] {
            let size = Size { ranks, chunks, microbatches };
            if schedule.build(size).is_ok() {
                proofs.push(parity(mpi, &mut beside, Text::new(microbatches), info.name, size, microbatches));
            }
        }
    }
    // Uneven microbatches, and an integer tensor beside a float one.
    for (name, microbatches, samples) in [("GPipe", 3, 8), ("1F1B", 4, 7), ("ZBH1", 5, 11)] {
        let size = Size { ranks, chunks: 1, microbatches };
        proofs.push(parity(mpi, &mut beside, Stack::new(samples), name, size, samples));
    }
    if mpi.rank() == 0 {
        println!("{} configurations", proofs.len());
    }
    prove(mpi, proofs);
}

/// A table on two ranks and a bias on all: summed over groups and over replicas, as threads sum them.
pub(crate) fn shared(mpi: &Mpi) {
    let train = move |pipeline: &mut Pipeline| -> Vec<(f64, Vec<Vec<f32>>)> {
        let step = |step| {
            let batch = tied::Text::new(tied::SMALL, 7, 10 + step).batch();
            let loss = pipeline.step(batch, RATE).unwrap().loss;
            (loss, pipeline.weights().unwrap().iter().flatten().map(read).collect())
        };
        (0..3u64).map(step).collect()
    };
    let schedules = [("1F1B", 1), ("ZBV", 2), ("DualPipe", 1)];
    let replicated = [(1, false), (2, false), (2, true)].into_iter().filter(|(replicas, _)| mpi.ranks() / replicas > 1);
    let mut beside = mpi.link(Device::flex()).unwrap();
    let mut proofs: Vec<Proof> = Vec::new();
    for ((replicas, sharded), (schedule, chunks)) in replicated.flat_map(|r| schedules.map(|schedule| (r, schedule))) {
        let size = Size { ranks: mpi.ranks() / replicas, chunks, microbatches: 4 };
        if by_name(schedule).unwrap().build(size).is_err() {
            continue;
        }
        let builder = move || {
            let builder = Pipeline::builder().schedule(schedule, size).devices(vec![Device::flex()]);
            let builder = builder.stages(tied::stage(tied::SMALL)).optimizer(|| AdamWConfig::new().init());
            let builder = builder.accumulation(Accumulation::Ordered).timeout(Duration::from_secs(60));
            let builder = builder.data_parallel(replicas).sharded(sharded);
            tied::declared().into_iter().fold(builder, Builder::share)
        };
        let mut processes = builder().build_rank(Box::new(mpi.link(Device::flex()).unwrap())).unwrap();
        assert!(processes.shared().iter().any(|report| report.copies.len() == size.ranks * chunks));
        let got = train(&mut processes);
        drop(processes);
        let place = format!("{schedule}, {replicas} replicas, sharded: {sharded}");
        assert_same(&mut beside, &got, &place);
        proofs.push(Box::new(move || assert_eq!(got, train(&mut builder().build().unwrap()), "{place}")));
    }
    prove(mpi, proofs);
}
