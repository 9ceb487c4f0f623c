//! Data-parallel replicas of a pipeline: their results, and what happens when one of them fails.

mod beside;
mod contract;
mod control;
mod faults;
mod more;
mod optimizers;
mod parity;
mod sharded;

use crate::cases::{Case, read};
use burn::optim::AdamWConfig;
use burn_pipeline::schedule::Size;
use burn_pipeline::train::{Builder, Pipeline};
use pipeline_tests::device::device;

pub(crate) const RATE: f64 = 1e-2;

/// Schedules with one and two chunks per rank, with whole and split backwards.
pub(crate) const SCHEDULES: [(&str, usize); 4] =
    [("GPipe", 1), ("1F1B", 1), ("Interleaved1F1B", 2), ("ZBVZeroBubble", 2)];

/// `replicas` replicas of two ranks.
pub(crate) fn replicated<C: Case>((schedule, chunks): (&str, usize), microbatches: usize, replicas: usize) -> Builder {
    Pipeline::builder()
        .schedule(schedule, Size { ranks: 2, chunks, microbatches })
        .devices(vec![device()])
        .stages(C::stage)
        .optimizer(|| AdamWConfig::new().init())
        .data_parallel(replicas)
}

/// All weights, in model order.
pub(crate) fn weights(pipeline: &mut Pipeline) -> Vec<Vec<f32>> {
    pipeline.weights().unwrap().iter().flatten().map(read).collect()
}

/// All gradients, in model order.
pub(crate) fn gradients(pipeline: &mut Pipeline) -> Vec<Vec<f32>> {
    let gradients = pipeline.take_gradients().unwrap();
    gradients.iter().flatten().map(|gradient| gradient.as_ref().map(read).unwrap_or_default()).collect()
}

/// The largest distance between two lists of tensors.
pub(crate) fn difference(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    assert_eq!(a.iter().map(Vec::len).collect::<Vec<_>>(), b.iter().map(Vec::len).collect::<Vec<_>>());
    a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// The microbatches of each replica: over `batches` batches of `count`, replica by replica.
pub(crate) fn parts(count: usize, batches: usize, replicas: usize) -> Vec<Vec<usize>> {
    let sizes = crate::cases::sizes(count, replicas);
    let of = |replica| {
        let own = crate::cases::range(&sizes, replica);
        (0..batches).flat_map(|batch| own.clone().map(move |i| batch * count + i)).collect()
    };
    (0..replicas).map(of).collect()
}
