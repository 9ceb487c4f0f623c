//! Tensor-parallel groups whose ranks are processes: losses, norms and weights match threads bit for bit.

#[allow(dead_code, reason = "the tests on threads use all of it")]
#[path = "../tensor/model.rs"]
mod model;
#[allow(dead_code, reason = "the tests on threads use all of it")]
#[path = "../tensor/plain.rs"]
mod plain;

use burn::tensor::Device;
use burn_pipeline::stage::SplitBackward;
use burn_pipeline::train::{Builder, Pipeline};
use burn_pipeline_mpi::Mpi;
use model::{batch, builder, builder_with, weights};
use plain::SMALL;
use std::time::Duration;

/// Groups of two ranks, two stages, and as many replicas as the ranks allow; then groups of one, two and one.
pub(crate) fn parity(mpi: &Mpi) {
    let replicas = mpi.ranks() / 4;
    for (schedule, compile) in [(("1F1B", 1), false), (("ZBVZeroBubble", 2), true)] {
        same(mpi, compile, || builder(schedule, (2, replicas, 2)));
    }
    for (schedule, compile) in [(("ZBH1", 1), false), (("1F1B", 1), true)] {
        same(mpi, compile, || builder_with(SMALL, schedule, (3, replicas), [1, 2, 1]));
    }
}

/// Asserts that processes match threads bit for bit.
fn same(mpi: &Mpi, compile: bool, builder: impl Fn() -> Builder) {
    let split = if compile { SplitBackward::Captured } else { SplitBackward::Eager };
    let builder = || builder().split(split).compile(compile).clip_norm(0.1).timeout(Duration::from_secs(60));
    let link = mpi.link(Device::flex()).unwrap();
    let got = trained(builder().build_rank(Box::new(link)).unwrap());
    if mpi.rank() == 0 {
        assert!(got == trained(builder().build().unwrap()), "compiled: {compile}");
    }
}

/// The losses and norms of two steps, and the weights after them.
#[derive(PartialEq)]
struct Trained {
    steps: [(f64, Option<f64>); 2],
    weights: Vec<Vec<f32>>,
}

fn trained(mut pipeline: Pipeline) -> Trained {
    let mut step = || {
        let report = pipeline.step(batch(&SMALL, 8), 0.5).unwrap();
        (report.loss, report.gradient_norm)
    };
    Trained { steps: [step(), step()], weights: weights(&mut pipeline) }
}
