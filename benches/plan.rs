//! From scratch to a checked plan: builds, shards, lowers and checks Interleaved1F1B on 64 ranks with 4 chunks
//! each; explicit waits and the communication passes; and the planner, from a model's layers to the best plan.
//!
//! The middle size (512 microbatches, 787,136 actions when lowered) is the one that PyTorch 2.7.1 was timed on:
//! about 4.0 s on two cores for build, validate, unshard and send/recv. The others show the growth.

use burn_pipeline::cost::{
    Dtype, Layer, Layers, LinkCost, LinkCosts, PartitionError, Profile, StageCost, UniformCosts,
};
use burn_pipeline::pass::overlap::{OverlapOptions, OverlapPass};
use burn_pipeline::pass::{Placing, WaitOptions};
use burn_pipeline::plan::{CheckOptions, CheckedPlan, Placement, Plan, Transport};
use burn_pipeline::planner::{Request, Synthesis, Workload, best_plan};
use burn_pipeline::schedule::{Size, by_name};
use burn_pipeline::simulate::{SimulateOptions, simulate};
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;

/// The stages that a rank may hold unsharded: PyTorch's default.
const ACTIVE: usize = 3;

fn build(microbatches: usize) -> Plan {
    let size = Size::new(64, microbatches).with_chunks(4);
    by_name("Interleaved1F1B").and_then(|schedule| schedule.build(size)).expect("a size that the schedule accepts")
}

fn shard(plan: &Plan) -> Plan {
    plan.with_unshard(ACTIVE).expect("three active stages are enough for single cells")
}

fn lower(plan: &Plan) -> Plan {
    plan.with_transfers().expect("the schedule's order can be followed")
}

fn check(plan: Plan, transport: Transport) -> CheckedPlan {
    plan.check(&CheckOptions { transport, ..CheckOptions::default() }).expect("lowered plans run")
}

fn actions(plan: &Plan) -> u64 {
    plan.rows().iter().map(|row| row.len() as u64).sum()
}

/// All steps together, from 64 to 4096 microbatches.
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

/// A GPT of 62 blocks with a head as heavy as five of them, for 4 microbatches per rank.
fn request(ranks: usize, cap: Option<f64>) -> Result<Request, PartitionError> {
    let block = Layer { activation_bytes: 9e7, freed_at_input_bytes: 3e7, output_bytes: 8e6, ..Layer::new('A') };
    let block = block.with_seconds(0.0040, 0.0042, 0.0036).with_parameters(12_500_000, Dtype::F32);
    let embedding = Layer { output_bytes: 8e6, ..Layer::new('E') };
    let embedding = embedding.with_seconds(0.0002, 0.0001, 0.0004).with_parameters(32_768_000, Dtype::F32);
    let head = Layer { activation_bytes: 2e8, ..Layer::new('L') };
    let head = head.with_seconds(0.02, 0.02, 0.02).with_parameters(32_768_000, Dtype::F32);
    let layers = Layers::new([vec![embedding], vec![block; 62], vec![head]].concat())?;
    let links = LinkCosts { default: LinkCost { latency: 1e-5, bandwidth: Some(2e10) }, between: Vec::new() };
    Ok(Request { cap, ..Request::new(vec![Workload::new(4 * ranks, layers)], ranks, links) })
}

/// The whole search, without a cap and with one that forces recomputation.
fn planner(c: &mut Criterion) {
    let mut group = c.benchmark_group("planner");
    for ranks in [2, 4, 8, 16] {
        for (name, cap) in [("no cap", None), ("cap", Some(5.0e10 / ranks as f64))] {
            let request = request(ranks, cap).expect("layers of finite costs");
            group.bench_function(BenchmarkId::new(name, ranks), |b| {
                b.iter(|| best_plan(black_box(&request)).expect("some candidate fits"));
            });
        }
    }
    group.finish();
}

/// One schedule synthesised for a profile: the growth of list scheduling alone, and with local search.
fn synthesis(c: &mut Criterion) {
    let placement = Placement::v(8).expect("eight ranks");
    let profile = Profile::uniform(&placement, UniformCosts::new(1.0, 1.0, 1.0)).expect("finite costs");
    let mut group = c.benchmark_group("synthesis, V of 8 ranks");
    for microbatches in [8, 16, 32, 64, 128] {
        group.throughput(Throughput::Elements(3 * 16 * microbatches as u64));
        // As many rules for every length, so that the growth is that of one schedule.
        let list = Synthesis { starts: 0, listing: 16 * 3 * 16 * microbatches, ..Synthesis::default() };
        for (name, made) in [("16 list schedules", list), ("default effort", Synthesis::default())] {
            group.bench_function(BenchmarkId::new(name, microbatches), |b| {
                b.iter(|| made.build(&profile, &placement, black_box(&[microbatches]), &[]).expect("no cap"));
            });
        }
    }
    group.finish();
}

/// Transfers that take as long as a computation, and memory for a few of them.
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
    let links = LinkCosts { default: LinkCost { latency: 0.5, bandwidth: Some(2.0) }, between: Vec::new() };
    let profile = Profile::new(vec![stage; plan.stages()], links).expect("numbers that are amounts");
    let simulate = SimulateOptions { overlap: false, ..SimulateOptions::default() };
    (profile, OverlapOptions { simulate, extra_bytes: 8.0, ..OverlapOptions::default() })
}

/// Waits, a simulation, and each communication pass, from 32 to 256 microbatches. A pass simulates and checks the
/// plan before and after, so its time includes two simulations.
fn passes(c: &mut Criterion) {
    let mut group = c.benchmark_group("communication");
    for microbatches in [32, 64, 128, 256] {
        let lowered = lower(&shard(&build(microbatches)));
        let waits = lowered.with_waits(&WaitOptions::all(Placing::Late));
        let (profile, options) = priced(&waits);
        group.throughput(Throughput::Elements(actions(&waits)));
        group.bench_function(BenchmarkId::new("insert waits", microbatches), |b| {
            b.iter(|| black_box(&lowered).with_waits(&WaitOptions::all(Placing::Late)));
        });
        group.bench_function(BenchmarkId::new("simulate", microbatches), |b| {
            b.iter(|| simulate(black_box(&waits), &profile, &options.simulate).expect("lowered plans run"));
        });
        for pass in OverlapPass::ALL {
            group.bench_function(BenchmarkId::new(pass.name(), microbatches), |b| {
                b.iter(|| black_box(&waits).run_passes(&profile, &[pass], &options).expect("lowered plans run"));
            });
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10);
    targets = passes, whole, steps, planner, synthesis
}
criterion_main!(benches);
