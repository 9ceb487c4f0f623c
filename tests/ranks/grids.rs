//! A model held by groups of ranks, each rank a process: losses, norms and weights have the bits of threads.

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
use model::{batch, builder, weights};
use plain::SMALL;
use std::time::Duration;

/// Groups of two ranks, two stages, and as many replicas as there are ranks for.
pub(crate) fn parity(mpi: &Mpi) {
    let grid = (2, mpi.ranks() / 4, 2);
    for (family, compile) in [(("1F1B", 1), false), (("ZBVZeroBubble", 2), true)] {
        let split = if compile { SplitBackward::Captured } else { SplitBackward::Eager };
        let builder = || -> Builder {
            let builder = builder(family, grid).split(split).compile(compile).clip_norm(0.1);
            builder.timeout(Duration::from_secs(60))
        };
        let link = mpi.link(Device::flex()).unwrap();
        let got = trained(builder().build_rank(Box::new(link)).unwrap());
        if mpi.rank() == 0 {
            assert!(got == trained(builder().build().unwrap()), "{family:?} on {grid:?}");
        }
    }
}

/// Losses and norms of two steps, and the weights after them.
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
