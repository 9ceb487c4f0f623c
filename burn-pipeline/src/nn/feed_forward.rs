//! A gated feed-forward layer whose hidden features are spread over a group.

use super::linear::{RowLinear, columns};
use crate::ops::DeferredForward;
use crate::tensor_group::TensorGroup;
use burn::module::Module;
use burn::nn::{Linear, SwiGlu};
use burn::tensor::Tensor;
use burn::tensor::activation::silu;

/// `down(silu(gate(x)) * up(x))`: Burn's [`SwiGlu`] with the linear layer after it. Parameters have their names in a module with these two
/// fields.
#[derive(Module, Debug)]
pub struct GatedFeedForward {
    /// This rank's columns of the gate (`linear_inner`) and of what it lets through.
    gated: SwiGlu,
    down: RowLinear,
    #[module(skip)]
    group: TensorGroup,
}

impl GatedFeedForward {
    /// Cuts ordinary layers: `linear_inner` of the gated one is the gate.
    ///
    /// # Panics
    /// If the hidden features cannot be cut evenly over the group, or these are replicas.
    pub fn cut(gated: SwiGlu, down: Linear, group: &TensorGroup) -> Self {
        let gated = SwiGlu {
            linear_inner: columns(gated.linear_inner, group),
            linear_outer: columns(gated.linear_outer, group),
        };
        Self { gated, down: RowLinear::cut(down, group), group: group.clone() }
    }

    /// From the whole input `[.., d_model]` to the whole output `[.., d_model]`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        self.down.forward(self.hidden(self.group.copy_to(x)))
    }

    /// As [`GatedFeedForward::forward`], from this rank's piece along another axis than the last, the sequence say, to its piece.
    pub fn forward_cut<const D: usize>(&self, piece: Tensor<D>, axis: usize) -> Tensor<D> {
        self.down.forward_cut(self.hidden(self.group.all_gather(piece, axis)), axis)
    }

    /// This rank's hidden features.
    fn hidden<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let gate = silu(self.gated.linear_inner.forward_deferred(x.clone()));
        gate * self.gated.linear_outer.forward_deferred(x)
    }
}
