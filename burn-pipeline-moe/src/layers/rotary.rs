//! Rotary position embedding.
//!
//! Su et al., "RoFormer" (2021): the halves of a head form pairs, and pair `i` of `w / 2` is rotated by the angle
//! `position * 10000^(-2i / w)`, so the dot product of a query and a key depends only on their distance. The angles are
//! computed from positions in each call; nothing is learned or stored.
//!
//! In half precision, positions and angles are f32; only sines and cosines are rounded.

use crate::ops::accumulator;
use burn::tensor::{FloatDType, Int, Tensor};

const BASE: f64 = 10_000.0;

/// Rotates queries or keys `[batch, heads, seq, width]` by positions `[batch, seq]`.
pub(super) fn rotated(x: Tensor<4>, positions: &Tensor<2, Int>) -> Tensor<4> {
    let ([batch, _, seq, width], device) = (x.dims(), x.device());
    let half = width / 2;
    // Half precision cannot count far: in bf16, 257 is 256.
    let (own, wide) = (x.dtype(), FloatDType::from(accumulator(x.dtype())));
    let exponents = Tensor::<1, Int>::arange(0..half as i64, &device).cast(wide);
    let rates = exponents.mul_scalar(-BASE.ln() / half as f64).exp().reshape([1, 1, 1, half]);
    let positions = positions.clone().cast(wide).reshape([batch, 1, seq, 1]);
    let angles = positions.expand([batch, 1, seq, half]) * rates.expand([batch, 1, seq, half]);
    let (sin, cos) = (angles.clone().sin().cast(own), angles.cos().cast(own));
    let (left, right) = (x.clone().narrow(3, 0, half), x.narrow(3, half, half));
    let turned_left = left.clone() * cos.clone() - right.clone() * sin.clone();
    let turned_right = left * sin + right * cos;
    Tensor::cat(vec![turned_left, turned_right], 3)
}

#[cfg(test)]
mod tests {
    use super::rotated;
    use burn::tensor::{DType, Device, Int, Tensor};

    const WIDTH: usize = 8;
    const POSITIONS: [i64; 7] = [1, 256, 257, 1000, 1001, 4000, 4001];
    /// Each type, and half a unit of its last place. Angles are f32, which is exact to 2^-13 at position 4000.
    const TYPES: [(DType, f64); 3] =
        [(DType::BF16, 1.0 / 256.0), (DType::F16, 1.0 / 2048.0), (DType::F32, 1.0 / 8192.0)];

    /// Numbers that every type has.
    fn head() -> Vec<f64> {
        [1.0, -0.5, 0.75, 0.25, -1.0, 0.5, 0.125, -0.75].to_vec()
    }

    /// The same head at each of the positions, rotated.
    fn at(positions: &[i64], dtype: DType) -> Vec<Vec<f64>> {
        let (device, count) = (Device::flex(), positions.len());
        let x = Tensor::<1>::from_floats(&*head(), &device).reshape([1, 1, 1, WIDTH]).expand([1, 1, count, WIDTH]);
        let positions = Tensor::<1, Int>::from_ints(positions, &device).unsqueeze::<2>();
        let y = rotated(x.cast(dtype), &positions);
        assert_eq!(y.dtype(), dtype);
        let y: Vec<f64> = y.into_data().iter::<f64>().collect();
        y.chunks(WIDTH).map(<[f64]>::to_vec).collect()
    }

    fn by_hand(position: i64) -> Vec<f64> {
        let (x, half) = (head(), WIDTH / 2);
        let angle = |i: usize| position as f64 * 10_000f64.powf(-(i as f64) / half as f64);
        let left = (0..half).map(|i| x[i] * angle(i).cos() - x[half + i] * angle(i).sin());
        let right = (0..half).map(|i| x[i] * angle(i).sin() + x[half + i] * angle(i).cos());
        left.chain(right).collect()
    }

    #[test]
    fn far_positions_are_rotated_as_exactly_as_near_ones_in_every_type() {
        for (dtype, unit) in TYPES {
            for (position, got) in POSITIONS.into_iter().zip(at(&POSITIONS, dtype)) {
                let off = got.iter().zip(by_hand(position)).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(off < 4.0 * unit, "{dtype:?} at {position}: {off:e} from {:?}", by_hand(position));
            }
        }
    }

    #[test]
    fn dot_products_depend_on_the_distance_only_in_every_type() {
        let dot = |pair: &[Vec<f64>]| pair[0].iter().zip(&pair[1]).map(|(a, b)| a * b).sum::<f64>();
        let squares: f64 = head().iter().map(|x| x * x).sum();
        for (dtype, unit) in TYPES {
            for distance in [1, 2, 100] {
                let near = dot(&at(&[distance, 0], dtype));
                for position in POSITIONS {
                    let far = dot(&at(&[position + distance, position], dtype));
                    let off = (far - near).abs() / squares;
                    assert!(off < 8.0 * unit, "{dtype:?}, {distance} from {position}: {off:e}");
                }
            }
        }
    }
}
