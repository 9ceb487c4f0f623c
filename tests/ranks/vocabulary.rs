//! A vocabulary parallel over ranks that are processes: losses, norms and weights match threads bit for bit.

#[allow(dead_code, reason = "the tests on threads use all of it")]
#[path = "../vocabulary/model.rs"]
mod model;
#[allow(dead_code, reason = "the tests on threads use all of it")]
#[path = "../vocabulary/plain.rs"]
mod plain;

use burn::tensor::Device;
use burn_pipeline::Pipeline;
use burn_pipeline::stage::SplitBackward;
use burn_pipeline_mpi::Mpi;
use model::{BOTH, TIED, batch, trained};
use std::time::Duration;

/// The losses of steps and of an evaluation, with two layers and with one tied matrix.
pub(crate) fn parity(mpi: &Mpi) {
    let ranks = mpi.ranks();
    for (parallel, schedule, compile) in [(BOTH, ("1F1B", 1), false), (TIED, ("ZBH1", 1), true)] {
        let builder = || {
            let builder = model::builder(parallel, schedule, ranks, 2 * ranks).clip_norm(0.1).compile(compile);
            builder.split(SplitBackward::Captured).timeout(Duration::from_secs(60))
        };
        let run = |mut pipeline: Pipeline| {
            let loss = pipeline.eval(batch(2 * ranks)).unwrap().loss;
            (loss, trained(&mut pipeline, 4 * ranks, 2, 0.5))
        };
        let got = run(builder().build_rank(Box::new(mpi.link(Device::flex()).unwrap())).unwrap());
        if mpi.rank() == 0 {
            assert!(got == run(builder().build().unwrap()), "{parallel:?}, {schedule:?} on {ranks} ranks");
        }
    }
}
