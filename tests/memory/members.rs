//! What ranks that hold a stage together keep of its weights: their pieces, and no more; or a part of them, where replicas shard them.

use crate::heap::{settle, turn};
use benches::heap::{peak_of_rank, restart};
use burn::module::Module;
use burn::nn::LinearConfig;
use burn::tensor::{Device, Tensor};
use burn_pipeline::nn::{ColumnLinear, RowLinear};
use burn_pipeline::{Pipeline, Size, Stage, StageBox};

const WIDTH: usize = 256;
const WIDE: usize = 4096;
/// Bytes of both weights.
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
        self.down.forward(self.up.forward(x))
    }
}

/// A rank holds this share of both weights, and little else.
fn assert_share(replicas: usize) {
    let _turn = turn();
    let pipeline = Pipeline::builder()
        .schedule("GPipe", Size::new(1, 1))
        .devices(vec![Device::flex()])
        .tensor_parallel(MEMBERS)
        .data_parallel(replicas)
        .sharded(replicas > 1)
        .stages(|at| {
            let linear = |from, to| LinearConfig::new(from, to).with_bias(false).init(&at.device);
            let up = ColumnLinear::cut(linear(WIDTH, WIDE), &at.group);
            StageBox::new(Pair { up, down: RowLinear::cut(linear(WIDE, WIDTH), &at.group) })
        })
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
