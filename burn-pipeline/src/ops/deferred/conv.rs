//! Burn's convolutions of one and two dimensions, with deferred weight and bias gradients.

use super::padding::{padding_1d, padding_2d};
use super::{DeferredForward, DeferredOp, deferred, defers, operands};
use burn::backend::ops::ModuleOps;
use burn::backend::{Dispatch, DispatchTensor};
use burn::nn::conv::{Conv1d, Conv2d};
use burn::tensor::Tensor;
use burn::tensor::ops::ConvOptions;

/// A convolution with this number of dimensions, from Burn's functions for it.
macro_rules! convolution {
    ($(#[$doc:meta])* $op:ident: $dims:literal, $forward:ident, $of_x:ident, $of_weight:ident, $of_bias:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        struct $op(ConvOptions<$dims>);

        impl DeferredOp for $op {
            fn name(&self) -> &'static str {
                stringify!($forward)
            }

            fn inputs(&self) -> usize {
                1
            }

            fn forward(&self, operands: &[DispatchTensor]) -> DispatchTensor {
                Dispatch::$forward(operands[0].clone(), operands[1].clone(), operands.get(2).cloned(), self.0.clone())
            }

            fn gradient(&self, operand: usize, operands: &[DispatchTensor], of: &DispatchTensor) -> DispatchTensor {
                let (x, of_output) = (operands[0].clone(), of.clone());
                match operand {
                    0 => Dispatch::$of_x(x, operands[1].clone(), of_output, self.0.clone()),
                    1 => Dispatch::$of_weight(x, operands[1].clone(), of_output, self.0.clone()),
                    _ => Dispatch::$of_bias(x, operands[2].clone(), of_output),
                }
            }
        }
    };
}

convolution! {
    /// Operands: input `[b, i, l]`, weight `[o, i / groups, k]` and, if there is one, bias `[o]`.
    Conv1dOp: 1, conv1d, conv1d_x_backward, conv1d_weight_backward, conv1d_bias_backward
}

convolution! {
    /// Operands: input `[b, i, h, w]`, weight `[o, i / groups, k, k]` and, if there is one, bias `[o]`.
    Conv2dOp: 2, conv2d, conv2d_x_backward, conv2d_weight_backward, conv2d_bias_backward
}

impl DeferredForward<Tensor<3>> for Conv1d {
    type Output = Tensor<3>;

    fn forward_deferred(&self, input: Tensor<3>) -> Tensor<3> {
        if !defers(&self.weight) {
            return self.forward(input);
        }
        let [_, _, length] = input.dims();
        let padding = padding_1d(&self.padding, length, self.kernel_size, self.stride);
        let options = ConvOptions::new_with_padding([self.stride], padding, [self.dilation], self.groups);
        Tensor::from_dispatch(deferred(Conv1dOp(options), operands(input, &self.weight, self.bias.as_ref())))
    }
}

impl DeferredForward<Tensor<4>> for Conv2d {
    type Output = Tensor<4>;

    fn forward_deferred(&self, input: Tensor<4>) -> Tensor<4> {
        if !defers(&self.weight) {
            return self.forward(input);
        }
        let [_, _, height, width] = input.dims();
        let padding = padding_2d(&self.padding, [height, width], self.kernel_size, self.stride);
        let options = ConvOptions::new_with_padding(self.stride, padding, self.dilation, self.groups);
        Tensor::from_dispatch(deferred(Conv2dOp(options), operands(input, &self.weight, self.bias.as_ref())))
    }
}
