//! Rotary positions (Su et al., "RoFormer", 2021), with the two halves of a head as pairs, as Llama's weights have
//! them.

use burn::tensor::{Device, Int, Tensor};

/// How angles shrink for sequences that are longer than those of pretraining.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scaling {
    /// They do not shrink.
    None,
    /// All by one factor (Chen et al., "Position Interpolation", 2023).
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Those that turn less than `low` times in the window of pretraining shrink by the factor, those that turn more
    /// than `high` times stay, and those between change gradually (Llama 3.1).
    Llama3 {
        /// The factor.
        factor: f64,
        /// The most turns that shrink by the whole factor.
        low: f64,
        /// The fewest turns that stay.
        high: f64,
        /// The window of pretraining, in tokens.
        window: f64,
    },
}

/// The angle of each pair of a head's elements per token.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotary {
    angles: Vec<f32>,
}

impl Rotary {
    /// Positions for heads of this width.
    pub fn new(head: usize, theta: f64, scaling: Scaling) -> Self {
        let plain = (0..head / 2).map(|pair| theta.powf(-2.0 * pair as f64 / head as f64));
        Self { angles: plain.map(|angle| scaling.of(angle) as f32).collect() }
    }

    /// The cosines and sines `[seq, head]` of the positions from `start` on.
    pub(crate) fn at(&self, start: usize, seq: usize, device: &Device) -> [Tensor<4>; 2] {
        let positions = Tensor::<1, Int>::arange(start as i64..(start + seq) as i64, device).float();
        let angles = Tensor::<1>::from_floats(self.angles.as_slice(), device).unsqueeze::<2>();
        let angles = positions.unsqueeze_dim::<2>(1) * angles;
        let angles = Tensor::cat(vec![angles.clone(), angles], 1).unsqueeze::<4>();
        [angles.clone().cos(), angles.sin()]
    }
}

impl Scaling {
    /// The angle in place of this one.
    fn of(self, angle: f64) -> f64 {
        match self {
            Scaling::None => angle,
            Scaling::Linear { factor } => angle / factor,
            Scaling::Llama3 { factor, low, high, window } => {
                let turns = window * angle / std::f64::consts::TAU;
                let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 - kept) * angle / factor + kept * angle
            }
        }
    }
}

/// Turns the heads `[batch, heads, seq, head]` by their positions.
pub(crate) fn turned(x: Tensor<4>, [cos, sin]: &[Tensor<4>; 2]) -> Tensor<4> {
    let half = x.dims()[3] / 2;
    let (first, second) = (x.clone().narrow(3, 0, half), x.clone().narrow(3, half, half));
    x * cos.clone() + Tensor::cat(vec![-second, first], 3) * sin.clone()
}
