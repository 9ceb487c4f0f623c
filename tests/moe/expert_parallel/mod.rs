//! Experts parallel over data-parallel replicas: gradients, weights, auxiliary losses, loads and drops equal those
//! of one device.

mod blind;
mod bytes;
mod checkpoints;
mod faults;
mod half;
mod parity;

use crate::cases::{builder, config};
use burn_pipeline::schedule::{Size, by_name};
use burn_pipeline::train::Builder;
use burn_pipeline_moe::router::Capacity;
use pipeline_examples::moe::gpt::MoeGptConfig;

/// The microbatches of a step, over all replicas.
const MICROBATCHES: usize = 4;
/// The samples of a step, in microbatches of equal size.
const SAMPLES: usize = 8;

/// Pipeline ranks, replicas and members.
type Grid = (usize, usize, usize);

/// A model with expert-parallel experts and shared ones.
fn parallel_config(capacity: Capacity) -> MoeGptConfig {
    config().with_shared(2).with_capacity(capacity).with_expert_parallel(true)
}

/// A pipeline of the model, under a schedule given by name and number of chunks.
fn on(config: &MoeGptConfig, (name, chunks): (&str, usize), (ranks, replicas, members): Grid) -> Builder {
    let size = Size { ranks, chunks, microbatches: MICROBATCHES / replicas };
    let builder = builder(by_name(name).unwrap().as_ref(), size, config, |part, _| part);
    builder.data_parallel(replicas).tensor_parallel(members)
}
