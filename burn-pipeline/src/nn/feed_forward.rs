//! A gated feed-forward layer whose hidden features are divided among a tensor-parallel group.

use super::linear::{RowLinear, columns};
use crate::ops::DeferredForward;
use crate::tensor_parallel::TensorGroup;
use burn::module::Module;
use burn::nn::{Linear, SwiGlu};
use burn::tensor::Tensor;
use burn::tensor::activation::silu;

/// `down(silu(gate(x)) * up(x))`: Burn's [`SwiGlu`] followed by the linear layer. Parameters have the names that they
/// have in a module with these two fields.
#[derive(Module, Debug)]
pub struct GatedFeedForward {
    /// This rank's columns of the gate (`linear_inner`) and of the layer that it gates.
    gated: SwiGlu,
    down: RowLinear,
    #[module(skip)]
    group: TensorGroup,
}

impl GatedFeedForward {
    /// Cuts ordinary layers: `linear_inner` of the gated one is the gate.
    ///
    /// # Panics
    /// Panics if the hidden features cannot be cut evenly over the group, or `group` is one of data-parallel
    /// replicas.
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

    /// Like [`GatedFeedForward::forward`], from this rank's piece along an axis other than the last (such as the
    /// sequence) to its piece.
    pub fn forward_cut<const D: usize>(&self, piece: Tensor<D>, axis: usize) -> Tensor<D> {
        self.down.forward_cut(self.hidden(self.group.all_gather(piece, axis)), axis)
    }

    /// This rank's hidden features.
    fn hidden<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let gate = silu(self.gated.linear_inner.forward_deferred(x.clone()));
        gate * self.gated.linear_outer.forward_deferred(x)
    }
}
