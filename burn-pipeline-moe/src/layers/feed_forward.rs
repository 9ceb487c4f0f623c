//! The gated feed-forward layer of dense blocks and of shared experts.

use super::initial::SMALL;
use burn::config::Config;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::silu;
use burn::tensor::{Device, Tensor};
use burn_pipeline::ops::DeferredForward;

/// The configuration of a feed-forward layer.
#[derive(Config, Debug)]
pub struct FeedForwardConfig {
    /// Width of the hidden state.
    pub d_model: usize,
    /// Width of the hidden layer.
    pub d_hidden: usize,
}

impl FeedForwardConfig {
    /// The layer, without biases.
    pub fn init(&self, device: &Device) -> FeedForward {
        let linear = |from, to| LinearConfig::new(from, to).with_bias(false).with_initializer(SMALL).init(device);
        FeedForward {
            gate: linear(self.d_model, self.d_hidden),
            up: linear(self.d_model, self.d_hidden),
            down: linear(self.d_hidden, self.d_model),
        }
    }
}

/// `down(silu(gate(x)) * up(x))`: Shazeer, "GLU Variants Improve Transformer" (2020).
#[derive(Module, Debug)]
pub struct FeedForward {
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl FeedForward {
    /// Runs the layer on `[.., d_model]`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let gate = silu(self.gate.forward_deferred(x.clone()));
        self.down.forward_deferred(gate * self.up.forward_deferred(x))
    }
}
