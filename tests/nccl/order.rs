//! Transfers concurrent with computations that change the sent tensors: a missing dependency shows as a wrong
//! element.

use crate::{TIMEOUT, link};
use burn::tensor::{Int, Tensor};
use burn_pipeline::link::{Header, Link, Message, MessageKind};
use burn_pipeline::payload::Boundary;
use burn_pipeline::plan::StageId;
use std::time::Instant;

const SIDE: usize = 1024;
const ROUNDS: usize = 20;

/// Each rank computes for a while, sends the result to the next rank, and computes on what it receives. The matmuls
/// are of permutation matrices, so every element is known exactly.
pub(crate) fn ring() {
    let (mut link, device) = link();
    let (me, ranks) = (link.rank(), link.ranks());
    let (next, before) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
    let eye = Tensor::<2>::eye(SIDE, &device);
    let shift = Tensor::cat(vec![eye.clone().narrow(0, 1, SIDE - 1), eye.narrow(0, 0, 1)], 0);
    for round in 0..ROUNDS {
        // Eight bits at most: exact in whatever a GPU's matrix units compute with.
        let base = |rank: usize| (rank % 4 * 32 + round % 32) as f32;
        let column = Tensor::<1, Int>::arange(0..SIDE as i64, &device).remainder_scalar(64).float().reshape([SIDE, 1]);
        let mut value = column.clone().repeat_dim(1, SIDE) + base(me);
        for _ in 0..50 {
            value = shift.clone().matmul(value);
        }
        let header = Header { stage: StageId::new(0), microbatch: round, kind: MessageKind::Activation };
        let deadline = Instant::now() + TIMEOUT;
        link.send(next, Message { header, payload: value.into_payload() }, deadline).unwrap();
        let got = link.receive(before, header, deadline).unwrap();
        // Used at once, on the GPU.
        let got = Tensor::<2>::from_payload(got).unwrap() * 2.0;
        let rotated = |row: usize| ((row + 50) % SIDE % 64) as f32;
        let values: Vec<f32> = got.into_data().iter::<f32>().collect();
        for (place, value) in values.into_iter().enumerate() {
            let expected = 2.0 * (rotated(place / SIDE) + base(before));
            assert!(value == expected, "round {round}, element {place}: {value} is not what was computed: {expected}");
        }
    }
}
