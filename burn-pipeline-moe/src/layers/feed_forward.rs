//! The gated feed-forward layer of dense blocks and of shared experts.

use super::initial::SMALL;
use burn::config::Config;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::silu;
use burn::tensor::{Device, Tensor};
use burn_pipeline::ops::DeferredForward;
use burn_pipeline::tensor_parallel::TensorGroup;

/// The configuration of a feed-forward layer.
#[derive(Config, Debug)]
pub struct FeedForwardConfig {
    /// Width of the hidden state.
    pub d_model: usize,
    /// Width of the hidden layer.
    pub d_hidden: usize,
}

impl FeedForwardConfig {
    /// Initializes the layer, without biases.
    pub fn init(&self, device: &Device) -> FeedForward {
        let linear = |from, to| LinearConfig::new(from, to).with_bias(false).with_initializer(SMALL).init(device);
        FeedForward {
            gate: linear(self.d_model, self.d_hidden),
            up: linear(self.d_model, self.d_hidden),
            down: linear(self.d_hidden, self.d_model),
            group: TensorGroup::alone(),
        }
    }
}

/// `down(silu(gate(x)) * up(x))`: Shazeer, "GLU Variants Improve Transformer" (2020).
#[derive(Module, Debug)]
pub struct FeedForward {
    gate: Linear,
    up: Linear,
    down: Linear,
    #[module(skip)]
    group: TensorGroup,
}

impl FeedForward {
    /// Makes the layer tensor parallel: each member of the group holds its share of the hidden features.
    ///
    /// # Panics
    /// Panics if they cannot be cut evenly over the group.
    pub fn cut(self, group: &TensorGroup) -> Self {
        group.expect_members("a feed-forward layer");
        let cut = |linear: Linear, axis| Linear { weight: group.cut(linear.weight, axis), ..linear };
        let (gate, up, down) = (cut(self.gate, 1), cut(self.up, 1), cut(self.down, 0));
        Self { gate, up, down, group: group.clone() }
    }

    /// Runs the layer on `[.., d_model]`. Input and output are whole on all members of its group.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        self.group.reduce_from(self.partial(self.group.copy_to(x)))
    }

    /// This rank's summand of the output, from its hidden features. The input went through [`TensorGroup::copy_to`].
    pub(super) fn partial<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let gate = silu(self.gate.forward_deferred(x.clone()));
        self.down.forward_deferred(gate * self.up.forward_deferred(x))
    }
}
