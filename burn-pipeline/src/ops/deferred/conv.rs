//! Burn's convolutions of one and two dimensions, with deferred weight and bias gradients.
//!
//! Burn keeps private how its layers compute the padding, so this file does it again. Pairs are (start, end) for each
//! dimension. `Same` keeps `ceil(size / stride)` outputs; if the padding is odd, the larger half goes to the end, as in
//! ONNX's `SAME_UPPER`.

use super::{DeferredForward, DeferredOp, deferred, defers, operands};
use burn::backend::ops::ModuleOps;
use burn::backend::{Dispatch, DispatchTensor};
use burn::nn::conv::{Conv1d, Conv2d};
use burn::nn::{PaddingConfig1d, PaddingConfig2d};
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

/// The padding of a convolution over one dimension.
fn padding_1d(padding: &PaddingConfig1d, length: usize, kernel: usize, stride: usize) -> [(usize, usize); 1] {
    [match padding {
        PaddingConfig1d::Valid => (0, 0),
        PaddingConfig1d::Same => same(length, kernel, stride),
        PaddingConfig1d::Explicit(left, right) => (*left, *right),
    }]
}

/// The padding of a convolution over height and width.
fn padding_2d(
    padding: &PaddingConfig2d,
    size: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
) -> [(usize, usize); 2] {
    match padding {
        PaddingConfig2d::Valid => [(0, 0); 2],
        PaddingConfig2d::Same => [0, 1].map(|d| same(size[d], kernel[d], stride[d])),
        PaddingConfig2d::Explicit(top, left, bottom, right) => [(*top, *bottom), (*left, *right)],
    }
}

fn same(size: usize, kernel: usize, stride: usize) -> (usize, usize) {
    let reach = (size.div_ceil(stride).max(1) - 1) * stride + kernel;
    let total = if size == 0 { 0 } else { reach.saturating_sub(size) };
    (total / 2, total - total / 2)
}
