//! From nothing to a proved plan: build, shard, lower and check Interleaved1F1B on 64 ranks with 4 chunks each; then
//! waits written down and the passes over communication.
//!
//! The middle size (512 microbatches, 787,136 actions once lowered) is the one that PyTorch 2.7.1 was timed on:
//! about 4.0 s on two cores for build, validate, unshard and send/recv. The others show how it grows.

use burn_pipeline::cost::{Link, Links, Profile, StageCost};
use burn_pipeline::pass::overlap::{OverlapOptions, Pass, run_passes};
use burn_pipeline::pass::{Placing, WaitOptions, insert_transfers, insert_unshard, insert_waits};
use burn_pipeline::plan::{CheckOptions, CheckedPlan, Plan, Transport};
use burn_pipeline::schedule::{Size, by_name};
use burn_pipeline::simulate::{SimulateOptions, simulate};
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

/// Transfers that take as long as a computation, and room for a few of them.
fn priced(plan: &Plan) -> (Profile, OverlapOptions) {
    let stage = StageCost {
        forward: 1.0,
        input: Some(1.0),
        weight: Some(1.0),
        activation_bytes: 4.0,
        message_bytes: 1.0,
        unshard: 1.0,
        unsharded_bytes: 2.0,
        ..StageCost::default()
    };
    let links = Links { default: Link { latency: 0.5, bandwidth: Some(2.0) }, between: Vec::new() };
    let profile = Profile::new(vec![stage; plan.stages()], links).expect("numbers that are amounts");
    let simulate = SimulateOptions { overlap: false, ..SimulateOptions::default() };
    (profile, OverlapOptions { simulate, extra_bytes: 8.0, ..OverlapOptions::default() })
}

/// Waits, a simulation, and each pass over communication, from 32 to 256 microbatches. A pass simulates and checks the
/// plan before and after, so two of the simulations beside it are in its time.
fn passes(c: &mut Criterion) {
    let mut group = c.benchmark_group("communication");
    for microbatches in [32, 64, 128, 256] {
        let lowered = lower(&shard(&build(microbatches)));
        let waits = insert_waits(&lowered, &WaitOptions::all(Placing::Late));
        let (profile, options) = priced(&waits);
        group.throughput(Throughput::Elements(actions(&waits)));
        group.bench_function(BenchmarkId::new("insert waits", microbatches), |b| {
            b.iter(|| insert_waits(black_box(&lowered), &WaitOptions::all(Placing::Late)));
        });
        group.bench_function(BenchmarkId::new("simulate", microbatches), |b| {
            b.iter(|| simulate(black_box(&waits), &profile, &options.simulate).expect("lowered plans run"));
        });
        for pass in Pass::ALL {
            group.bench_function(BenchmarkId::new(pass.name(), microbatches), |b| {
                b.iter(|| run_passes(black_box(&waits), &profile, &[pass], &options).expect("lowered plans run"));
            });
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10);
    targets = whole, steps, passes
}
criterion_main!(benches);
