//! From nothing to a proved plan: build, shard, lower and check Interleaved1F1B on 64 ranks with 4 chunks each.
//!
//! The middle size (512 microbatches, 787,136 actions once lowered) is the one that PyTorch 2.7.1 was timed on:
//! about 4.0 s on two cores for build, validate, unshard and send/recv. The others show how it grows.

use burn_pipeline::pass::{insert_transfers, insert_unshard};
use burn_pipeline::plan::{CheckOptions, CheckedPlan, Plan, Transport};
use burn_pipeline::schedule::{Size, by_name};
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;

/// Stages that a rank may hold unsharded, as PyTorch's default.
const ACTIVE: usize = 3;

fn build(microbatches: usize) -> Plan {
    let size = Size::new(64, microbatches).with_chunks(4);
    by_name("Interleaved1F1B").and_then(|family| family.build(size)).expect("a size that the family accepts")
}

fn shard(plan: &Plan) -> Plan {
    insert_unshard(plan, ACTIVE).expect("three active stages are enough for single cells")
}

fn lower(plan: &Plan) -> Plan {
    insert_transfers(plan).expect("the family's order can be followed")
}

fn check(plan: Plan, transport: Transport) -> CheckedPlan {
    plan.check(&CheckOptions { transport, ..CheckOptions::default() }).expect("lowered plans run")
}

fn actions(plan: &Plan) -> u64 {
    plan.rows().iter().map(|row| row.len() as u64).sum()
}

/// All of it, from 64 to 4096 microbatches.
fn whole(c: &mut Criterion) {
    let mut group = c.benchmark_group("build, shard, lower, check");
    for microbatches in [64, 128, 256, 512, 1024, 2048, 4096] {
        let lowered = actions(&lower(&shard(&build(microbatches))));
        group.throughput(Throughput::Elements(lowered));
        group.bench_with_input(BenchmarkId::from_parameter(microbatches), &microbatches, |b, &microbatches| {
            b.iter(|| check(lower(&shard(&build(black_box(microbatches)))), Transport::Rendezvous));
        });
    }
    group.finish();
}

/// Each step alone, at 512 microbatches.
fn steps(c: &mut Criterion) {
    let built = build(512);
    let sharded = shard(&built);
    let lowered = lower(&sharded);
    let mut group = c.benchmark_group("512 microbatches");
    group.bench_function("build", |b| b.iter(|| build(black_box(512))));
    group.bench_function("shard", |b| b.iter(|| shard(black_box(&built))));
    group.bench_function("lower", |b| b.iter(|| lower(black_box(&sharded))));
    for transport in [Transport::Rendezvous, Transport::Buffered(2), Transport::Unbounded] {
        group.bench_function(format!("check, {transport}"), |b| {
            b.iter_batched(|| lowered.clone(), |plan| check(plan, transport), BatchSize::LargeInput);
        });
    }
    group.bench_function("check, not lowered", |b| {
        b.iter_batched(|| built.clone(), |plan| check(plan, Transport::Rendezvous), BatchSize::LargeInput);
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10);
    targets = whole, steps
}
criterion_main!(benches);
