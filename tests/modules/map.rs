//! The linear map of every layer, whose outputs are cut over a tensor-parallel group.
//!
//! A member computes its columns and gathers the others'; the gradient of the input is a sum over members. The plain
//! loop computes the same columns in parts, and adds the gradients of the parts in the type in which a group adds them,
//! so both have the same bits.

use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::module::linear;
use burn::tensor::{FloatDType, Tensor};
use burn_pipeline::StageContext;
use burn_pipeline::nn::ColumnLinear;
use burn_pipeline::tensor_parallel::TensorGroup;

/// A linear map in the type of its weight.
#[derive(Module, Debug)]
pub(crate) struct Map {
    columns: ColumnLinear,
    #[module(skip)]
    group: TensorGroup,
    parts: usize,
}

impl Map {
    /// Cuts a layer over the group of a stage.
    pub(crate) fn cut(linear: Linear, at: &StageContext) -> Self {
        Self { columns: ColumnLinear::cut(linear, &at.group), group: at.group.clone(), parts: 1 }
    }

    /// The whole map on one device, computed in parts.
    pub(crate) fn in_parts(mut self, parts: usize) -> Self {
        self.parts = parts;
        self
    }

    /// The type in which it computes.
    pub(crate) fn dtype(&self) -> FloatDType {
        self.columns.linear.weight.val().dtype().into()
    }

    pub(crate) fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let own = self.dtype();
        let x = x.cast(own);
        if self.parts == 1 {
            return self.group.gather_from(self.columns.forward(x), 1);
        }
        let Linear { weight, bias } = &self.columns.linear;
        let (weight, bias) = (weight.val(), bias.as_ref().unwrap().val());
        let each = weight.dims()[1] / self.parts;
        // The product is a node of its own, at which the gradients of the parts meet before those of other uses of `x`.
        let sums = if own == FloatDType::F64 { own } else { FloatDType::F32 };
        let input = x.cast(sums) * 1.0;
        let part = |part: usize| {
            let columns = weight.clone().narrow(1, part * each, each);
            linear(input.clone().cast(own), columns, Some(bias.clone().narrow(0, part * each, each)))
        };
        Tensor::cat((0..self.parts).map(part).collect(), 1)
    }
}
