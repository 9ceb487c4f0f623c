//! Rotary position embedding.
//!
//! Su et al., "RoFormer" (2021): the halves of a head form pairs, and pair `i` of `w / 2` is rotated by the angle
//! `position * 10000^(-2i / w)`, so the dot product of a query and a key depends only on their distance. The angles are
//! computed from positions in each call; nothing is learned or stored.

use burn::tensor::{Int, Tensor};

const BASE: f64 = 10_000.0;

/// Rotates queries or keys `[batch, heads, seq, width]` by positions `[batch, seq]`.
pub(super) fn rotated(x: Tensor<4>, positions: &Tensor<2, Int>) -> Tensor<4> {
    let ([batch, _, seq, width], device) = (x.dims(), x.device());
    let half = width / 2;
    let exponents = Tensor::<1, Int>::arange(0..half as i64, &device).float().cast(x.dtype());
    let rates = exponents.mul_scalar(-BASE.ln() / half as f64).exp().reshape([1, 1, 1, half]);
    let positions = positions.clone().float().cast(x.dtype()).reshape([batch, 1, seq, 1]);
    let angles = positions.expand([batch, 1, seq, half]) * rates.expand([batch, 1, seq, half]);
    let (sin, cos) = (angles.clone().sin(), angles.cos());
    let (left, right) = (x.clone().narrow(3, 0, half), x.narrow(3, half, half));
    let turned_left = left.clone() * cos.clone() - right.clone() * sin.clone();
    let turned_right = left * sin + right * cos;
    Tensor::cat(vec![turned_left, turned_right], 3)
}
