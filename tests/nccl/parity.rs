//! Pipelines whose ranks are processes connected by NCCL, compared with pipelines of threads on one device.

use crate::cases::{Case, Stack, Text, read};
use crate::link;
use burn::optim::AdamWConfig;
use burn::tensor::Device;
use burn_pipeline::link::Link;
use burn_pipeline::schedule::{Chunks, Size, all};
use burn_pipeline::stage::Accumulation;
use burn_pipeline::train::{Builder, Pipeline};
use std::time::Duration;

fn builder<C: Case>(name: &str, size: Size, device: &Device) -> Builder {
    Pipeline::builder()
        .schedule(name, size)
        .devices(vec![device.clone()])
        .stages(C::stage)
        .optimizer(|| AdamWConfig::new().init())
        .accumulation(Accumulation::Ordered)
        .clip_norm(0.05)
        .timeout(Duration::from_secs(60))
}

/// The loss and the norm of each step, then all weights.
type Trace = (Vec<(f64, Option<f64>)>, Vec<Vec<f32>>);

fn trace<C: Case>(case: &C, pipeline: &mut Pipeline) -> Trace {
    let step = |_| {
        let report = pipeline.step(case.batch(), 1e-2).unwrap();
        (report.loss, report.gradient_norm)
    };
    let steps = (0..3).map(step).collect();
    (steps, pipeline.weights().unwrap().iter().flatten().map(read).collect())
}

fn assert_parity<C: Case>(case: &C, name: &str, size: Size) {
    let (link, device) = link();
    let mut difference = builder::<C>(name, size, &device).build_rank(Box::new(link)).unwrap();
    let processes = trace(case, &mut difference);
    drop(difference);
    let threads = trace(case, &mut builder::<C>(name, size, &device).build().unwrap());
    assert!(processes == threads, "{name}, {size:?}: over NCCL {processes:?}, threads {threads:?}");
}

/// Every schedule, each over a new link at the same rendezvous.
pub(crate) fn schedules() {
    let ranks = std::env::var("WORLD_SIZE").unwrap().parse().unwrap();
    for schedule in all().into_iter().filter(|schedule| schedule.info().name != "ForwardOnly") {
        let info = schedule.info();
        let chunks = if let Chunks::Exactly(chunks) = info.chunks { chunks } else { 1 };
        let size = Size { ranks, chunks, microbatches: 4 };
        if schedule.build(size).is_ok() {
            assert_parity(&Text::new(4), info.name, size);
        }
    }
    assert_parity(&Stack::new(7), "1F1B", Size::new(ranks, 4));
}

/// Trains until another rank is lost, and prints the error.
pub(crate) fn until_one_is_lost() {
    let (link, device) = link();
    let size = Size::new(link.ranks(), 4);
    let mut pipeline = builder::<Text>("1F1B", size, &device).build_rank(Box::new(link)).unwrap();
    for step in 0..1_000_000 {
        match pipeline.step(Text::new(4).batch(), 1e-2) {
            Ok(report) => println!("step {step} loss {}", report.loss),
            Err(error) => return println!("failed: {error}"),
        }
    }
}
