//! Linear layers cut by columns and by rows of their weight `[input, output]`.

use super::as_ordinary::as_ordinary;
use crate::ops::DeferredForward;
use crate::tensor_parallel::TensorGroup;
use burn::nn::Linear;
use burn::tensor::Tensor;

/// A column-parallel linear layer: each rank of a group computes its piece of the output. Its parameters have the
/// ordinary layer's names.
#[derive(Clone, Debug)]
pub struct ColumnLinear {
    /// This rank's columns of the weight, with their biases.
    pub linear: Linear,
    group: TensorGroup,
}

as_ordinary!(ColumnLinear { linear });

impl ColumnLinear {
    /// Cuts an ordinary layer.
    ///
    /// # Panics
    /// Panics if its outputs cannot be cut evenly over the group, or `group` is one of data-parallel replicas.
    pub fn cut(linear: Linear, group: &TensorGroup) -> Self {
        Self { linear: columns(linear, group), group: group.clone() }
    }

    /// From the whole input `[.., input]` to this rank's piece `[.., output / ranks]`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        self.linear.forward_deferred(self.group.copy_to(x))
    }

    /// Like [`ColumnLinear::forward`], from this rank's piece of an input that is cut along an axis other than the
    /// last (such as the sequence): gathers the whole input.
    pub fn forward_cut<const D: usize>(&self, piece: Tensor<D>, axis: usize) -> Tensor<D> {
        self.linear.forward_deferred(self.group.all_gather(piece, axis))
    }
}

/// This rank's columns of a layer. Their input must go through [`TensorGroup::copy_to`] or
/// [`TensorGroup::all_gather`].
pub(super) fn columns(linear: Linear, group: &TensorGroup) -> Linear {
    group.expect_members("a linear layer");
    let weight = group.cut(linear.weight, 1);
    Linear { weight, bias: linear.bias.map(|bias| group.cut(bias, 0)) }
}

/// A row-parallel linear layer: each rank of a group contributes its piece of the input. Its parameters have the
/// ordinary layer's names.
#[derive(Clone, Debug)]
pub struct RowLinear {
    /// This rank's rows of the weight, and the whole bias, which is added to the sum.
    pub linear: Linear,
    group: TensorGroup,
}

as_ordinary!(RowLinear { linear });

impl RowLinear {
    /// Cuts an ordinary layer.
    ///
    /// # Panics
    /// Panics if its inputs cannot be cut evenly over the group, or `group` is one of data-parallel replicas.
    pub fn cut(linear: Linear, group: &TensorGroup) -> Self {
        group.expect_members("a linear layer");
        let weight = group.cut(linear.weight, 0);
        Self { linear: Linear { weight, bias: linear.bias }, group: group.clone() }
    }

    /// From this rank's piece `[.., input / ranks]` to the whole output `[.., output]`.
    pub fn forward<const D: usize>(&self, piece: Tensor<D>) -> Tensor<D> {
        let sum = self.group.reduce_from(self.product(piece));
        match &self.linear.bias {
            Some(bias) => sum + bias.val().unsqueeze(),
            None => sum,
        }
    }

    /// Like [`RowLinear::forward`], to this rank's piece of the output along an axis other than the last (such as the
    /// sequence).
    ///
    /// # Panics
    /// Panics if the axis cannot be cut evenly over the group.
    pub fn forward_cut<const D: usize>(&self, piece: Tensor<D>, axis: usize) -> Tensor<D> {
        let sum = self.group.reduce_scatter(self.product(piece), axis);
        match &self.linear.bias {
            // Each rank adds the bias only to its piece.
            Some(bias) => sum + self.group.copy_to(bias.val()).unsqueeze(),
            None => sum,
        }
    }

    /// This rank's part of the sum.
    fn product<const D: usize>(&self, piece: Tensor<D>) -> Tensor<D> {
        Linear { weight: self.linear.weight.clone(), bias: None }.forward_deferred(piece)
    }
}
