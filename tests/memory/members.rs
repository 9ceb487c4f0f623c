//! The weights that members of a tensor-parallel group keep: their pieces and no more, or a shard of them with
//! sharded replicas.

use crate::heap::{HEAP, settle, turn};
use benches::heap::{peak_of_rank, restart};
use burn::module::Module;
use burn::nn::LinearConfig;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use burn_pipeline::cost::{LinkCosts, Profile, StageCost};
use burn_pipeline::nn::{ColumnLinear, RowLinear};
use burn_pipeline::simulate::{SimulateOptions, simulate};
use burn_pipeline::stage::{Batch, SplitBackward};
use burn_pipeline::{Pipeline, Size, Stage, StageBox, StageContext};

const WIDTH: usize = 256;
const WIDE: usize = 4096;
/// The bytes of both weights.
const WEIGHTS: usize = 2 * WIDTH * WIDE * size_of::<f32>();
const MEMBERS: usize = 4;

#[derive(Module, Debug)]
struct Pair {
    up: ColumnLinear,
    down: RowLinear,
}

impl Stage for Pair {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        self.down.forward(self.up.forward(x).tanh())
    }
}

fn pair(at: &StageContext) -> Pair {
    let linear = |from, to| LinearConfig::new(from, to).with_bias(false).init(&at.device);
    let up = ColumnLinear::cut(linear(WIDTH, WIDE), &at.group);
    Pair { up, down: RowLinear::cut(linear(WIDE, WIDTH), &at.group) }
}

/// Asserts that a rank holds its share of both weights, and little else.
fn assert_share(replicas: usize) {
    let _turn = turn();
    let pipeline = Pipeline::builder()
        .schedule("GPipe", Size::new(1, 1))
        .devices(vec![Device::flex()])
        .tensor_parallel(MEMBERS)
        .data_parallel(replicas)
        .sharded(replicas > 1)
        .stages(|at| StageBox::new(pair(at)))
        .build()
        .unwrap();
    settle();
    restart();
    let share = WEIGHTS / (MEMBERS * replicas);
    for rank in 0..MEMBERS * replicas {
        let held = peak_of_rank(rank);
        assert!((share..share + share / 4).contains(&held), "rank {rank}: {held} bytes for a share of {share}");
    }
    drop(pipeline);
}

#[test]
fn each_member_of_a_group_holds_its_pieces_alone() {
    assert_share(1);
}

#[test]
fn each_replica_of_a_member_holds_its_part_of_the_pieces_alone() {
    assert_share(2);
}

/// The rows of a microbatch.
const ROWS: usize = 128;
const MICROBATCHES: usize = 6;

#[test]
fn the_peak_of_each_member_is_as_predicted_from_its_share_of_the_stage() {
    let _turn = turn();
    for members in [1, 2, MEMBERS] {
        let mut pipeline = Pipeline::builder()
            .schedule("1F1B", Size::new(2, MICROBATCHES))
            .devices(vec![Device::flex()])
            .tensor_parallel(members)
            .split(SplitBackward::Captured)
            .stages(|at| match at.is_last() {
                false => StageBox::new(pair(at)),
                true => StageBox::with_loss(pair(at), |y: Tensor<2>, t: Tensor<2>| (y - t).square().mean()),
            })
            .build()
            .unwrap();
        let x = Tensor::<2>::ones([ROWS * MICROBATCHES, WIDTH], &Device::flex());
        let batch = || Batch::new(x.clone()).target(x.clone());
        // The first batch captures the stages.
        drop(pipeline.accumulate(batch()).unwrap());
        drop(pipeline.take_gradients().unwrap());
        settle();
        restart();
        let report = pipeline.accumulate(batch()).unwrap();
        // For each microbatch, the whole input and pieces of `tanh`'s input and output are kept for the backward.
        let number = size_of::<f32>();
        let (input, hidden) = (ROWS * WIDTH * number, ROWS * WIDE * number / members);
        let (weights, held) = (WEIGHTS / members, input + 2 * hidden);
        let stage = |more: usize| StageCost {
            forward: 1.0,
            backward: Some(2.0),
            weight_bytes: weights as f64,
            gradient_bytes: weights as f64,
            activation_bytes: (held + more) as f64,
            ..StageCost::default()
        };
        // The last stage also keeps the difference to the target, which is as large as its input.
        let profile = Profile::new(vec![stage(0), stage(input)], LinkCosts::default()).unwrap();
        let plan = pipeline.plan(MICROBATCHES).unwrap();
        let simulated = simulate(plan.plan(), &profile, &SimulateOptions::default()).unwrap();
        for rank in 0..2 * members {
            let predicted = &simulated.ranks[rank / members];
            let activations = predicted.memory.iter().map(|point| point.activations).fold(0.0, f64::max) as usize;
            assert_eq!(report.peak_held_bytes[rank], Some(activations), "{members} members, rank {rank}");
            // The peak adds the backward's temporaries: hidden values and their gradient, new gradients of the
            // weights, and some tensors as large as the input.
            let (peak, predicted) = (peak_of_rank(rank), predicted.peak_bytes as usize);
            let most = predicted + 2 * hidden + weights + 4 * input;
            assert!(
                (predicted..most).contains(&peak),
                "{members} members, rank {rank}: {peak} for {predicted}..{most}"
            );
        }
    }
}

#[test]
fn the_peak_of_each_member_is_predicted_within_a_tenth_from_what_one_was_measured_to_need() {
    let _turn = turn();
    for (schedule, chunks, groups, split) in [
        ("1F1B", 1, [2, 2], SplitBackward::Eager),
        ("ZBVZeroBubble", 2, [MEMBERS, MEMBERS], SplitBackward::Captured),
        ("1F1B", 1, [1, 2], SplitBackward::Captured),
    ] {
        settle();
        let builder = Pipeline::builder()
            .schedule(schedule, Size::new(2, MICROBATCHES).with_chunks(chunks))
            .devices(vec![Device::flex()])
            .tensor_parallel(groups)
            .split(split)
            .optimizer(|| AdamWConfig::new().init())
            .stages(|at| match at.is_last() {
                false => StageBox::new(pair(at)),
                true => StageBox::with_loss(pair(at), |y: Tensor<2>, t: Tensor<2>| (y - t).square().mean()),
            });
        let batch = |microbatches: usize| {
            let x = Tensor::<2>::ones([ROWS * microbatches, WIDTH], &Device::flex());
            Batch::new(x.clone()).target(x)
        };
        let profile = builder.measure_memory(batch(1), &HEAP).unwrap();
        let mut pipeline = builder.build().unwrap();
        drop(pipeline.step(batch(MICROBATCHES), 1e-4).unwrap());
        restart();
        drop(pipeline.step(batch(MICROBATCHES), 1e-4).unwrap());
        let plan = pipeline.plan(MICROBATCHES).unwrap();
        let simulated = simulate(plan.plan(), &profile, &SimulateOptions::default()).unwrap();
        for rank in 0..groups.iter().sum() {
            let pipeline_rank = usize::from(rank >= groups[0]);
            let (predicted, measured) = (simulated.ranks[pipeline_rank].peak_bytes, peak_of_rank(rank) as f64);
            let ratio = predicted / measured;
            println!("{schedule} on {groups:?}, {split:?}, rank {rank}: {predicted:.0} for {measured:.0}, {ratio:.3}");
            assert!((0.9..=1.1).contains(&ratio), "{schedule} on {groups:?}, rank {rank}: {predicted} for {measured}");
        }
    }
}
