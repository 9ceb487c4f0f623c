//! Linear layers cut by columns and by rows of their weight `[input, output]`.

use crate::ops::DeferredForward;
use crate::tensor_group::TensorGroup;
use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::tensor::Tensor;

/// A linear layer of which each rank of a group computes its piece of the output.
#[derive(Module, Debug)]
pub struct ColumnLinear {
    /// This rank's columns of the weight, with their biases.
    pub linear: Linear,
    #[module(skip)]
    group: TensorGroup,
}

impl ColumnLinear {
    /// Cuts an ordinary layer.
    ///
    /// # Panics
    /// If its outputs cannot be cut evenly over the group.
    pub fn cut(linear: Linear, group: &TensorGroup) -> Self {
        Self { linear: columns(linear, group), group: group.clone() }
    }

    /// From the whole input `[.., input]` to this rank's piece `[.., output / ranks]`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        self.linear.forward_deferred(self.group.copy_to(x))
    }
}

/// The columns of a layer that this rank holds. Their input has to go through [`TensorGroup::copy_to`].
pub(super) fn columns(linear: Linear, group: &TensorGroup) -> Linear {
    let weight = group.cut(linear.weight, 1);
    Linear { weight, bias: linear.bias.map(|bias| group.cut(bias, 0)) }
}

/// A linear layer to which each rank of a group gives its piece of the input.
#[derive(Module, Debug)]
pub struct RowLinear {
    /// This rank's rows of the weight; the bias is beside it.
    pub linear: Linear,
    /// The bias, which all ranks add to the sum.
    pub bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    group: TensorGroup,
}

impl RowLinear {
    /// Cuts an ordinary layer.
    ///
    /// # Panics
    /// If its inputs cannot be cut evenly over the group.
    pub fn cut(linear: Linear, group: &TensorGroup) -> Self {
        let weight = group.cut(linear.weight, 0);
        Self { linear: Linear { weight, bias: None }, bias: linear.bias, group: group.clone() }
    }

    /// From this rank's piece `[.., input / ranks]` to the whole output `[.., output]`.
    pub fn forward<const D: usize>(&self, piece: Tensor<D>) -> Tensor<D> {
        let sum = self.group.reduce_from(self.linear.forward_deferred(piece));
        match &self.bias {
            Some(bias) => sum + bias.val().unsqueeze(),
            None => sum,
        }
    }
}
