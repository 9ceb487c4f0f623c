//! Experts parallel over a tensor-parallel group: gradients, auxiliary losses, loads and drops equal those of one
//! device.

use crate::cases::{Distance, builder, config, distance, pipelined, plain};
use crate::parity::assert_close;
use burn_pipeline::schedule::{Size, by_name};
use burn_pipeline::stage::SplitBackward;
use burn_pipeline::train::Builder;
use burn_pipeline_moe::router::Capacity;
use pipeline_examples::moe::gpt::MoeGptConfig;

/// The microbatches of a step, of one or two samples each.
const MICROBATCHES: usize = 4;
const BATCH: usize = 6;

/// Pipeline ranks, replicas and members.
type Grid = (usize, usize, usize);

/// Whole and split backwards, one and two chunks, loops and a V.
const SCHEDULES: [(&str, usize); 5] =
    [("GPipe", 1), ("1F1B", 1), ("Interleaved1F1B", 2), ("ZBVZeroBubble", 2), ("DualPipeV", 2)];

/// The distance of every schedule on these grids from the plain loop.
fn distances(config: &MoeGptConfig, grids: &[Grid], engine: impl Fn(Builder) -> Builder) -> Vec<(Distance, String)> {
    let expected = plain(config, &[BATCH], MICROBATCHES);
    let mut found = Vec::new();
    for &(ranks, replicas, members) in grids {
        for (name, chunks) in SCHEDULES {
            let size = Size { ranks, chunks, microbatches: MICROBATCHES / replicas };
            let builder = builder(by_name(name).unwrap().as_ref(), size, config, |part, _| part);
            let builder = engine(builder).data_parallel(replicas).tensor_parallel(members);
            let place = format!("{name} on {ranks} x {replicas} x {members}");
            found.push((distance(config, &pipelined(builder, &[BATCH], config), &expected), place));
        }
    }
    found
}

fn with_capacity(capacity: Capacity) -> MoeGptConfig {
    config().with_shared(2).with_capacity(capacity)
}

#[test]
fn experts_over_a_group_equal_one_device_with_and_without_a_capacity() {
    for capacity in [Capacity::Dropless, Capacity::Factor(0.7)] {
        for (distance, place) in
            distances(&with_capacity(capacity), &[(1, 1, 4), (2, 1, 2), (2, 2, 2)], |builder| builder)
        {
            assert_close(&distance, &format!("{capacity:?}, {place}"));
        }
    }
}

#[test]
fn captured_and_compiled_experts_over_a_group_equal_one_device() {
    for (compile, grid) in [(false, (2, 1, 2)), (true, (2, 2, 2))] {
        let engine = |builder: Builder| builder.split(SplitBackward::Captured).compile(compile);
        for (distance, place) in distances(&with_capacity(Capacity::Factor(0.7)), &[grid], engine) {
            assert_close(&distance, &format!("compiled: {compile}, {place}"));
        }
    }
}

#[test]
fn experts_that_cannot_be_cut_evenly_are_refused_by_number() {
    let size = Size::new(1, 2);
    let builder = builder(by_name("1F1B").unwrap().as_ref(), size, &config(), |part, _| part);
    let error = builder.tensor_parallel(3).build().unwrap_err().to_string();
    assert!(error.contains("cannot be cut evenly over the 3 ranks of a group"), "{error}");
}
