//! A gated feed-forward layer whose hidden features are spread over a group.

use super::linear::{RowLinear, columns};
use crate::ops::DeferredForward;
use crate::tensor_group::TensorGroup;
use burn::module::Module;
use burn::nn::{Linear, SwiGlu};
use burn::tensor::Tensor;
use burn::tensor::activation::silu;

/// `down(silu(gate(x)) * up(x))`: Burn's [`SwiGlu`] with the linear layer after it.
#[derive(Module, Debug)]
pub struct GatedFeedForward {
    gate: Linear,
    up: Linear,
    down: RowLinear,
    #[module(skip)]
    group: TensorGroup,
}

impl GatedFeedForward {
    /// Cuts ordinary layers: `linear_inner` of the gated one is the gate.
    ///
    /// # Panics
    /// If the hidden features cannot be cut evenly over the group.
    pub fn cut(gated: SwiGlu, down: Linear, group: &TensorGroup) -> Self {
        Self {
            gate: columns(gated.linear_inner, group),
            up: columns(gated.linear_outer, group),
            down: RowLinear::cut(down, group),
            group: group.clone(),
        }
    }

    /// From the whole input `[.., d_model]` to the whole output `[.., d_model]`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let x = self.group.copy_to(x);
        let gate = silu(self.gate.forward_deferred(x.clone()));
        self.down.forward(gate * self.up.forward_deferred(x))
    }
}
