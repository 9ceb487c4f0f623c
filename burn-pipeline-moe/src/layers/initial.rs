//! Initial values of weights.

use burn::nn::Initializer;

/// A normal distribution with a standard deviation of 0.02, as in GPT-2.
pub(super) const SMALL: Initializer = Initializer::Normal { mean: 0.0, std: 0.02 };
