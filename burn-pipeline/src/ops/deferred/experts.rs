//! The batched matmul of experts, with a deferred weight gradient.

use super::{DeferredOp, deferred, defers, operands};
use burn::backend::ops::FloatTensorOps;
use burn::backend::{Dispatch, DispatchTensor};
use burn::module::Param;
use burn::tensor::Tensor;

/// `y[e] = x[e] W[e]`; operands `x` and `W`.
#[derive(Debug)]
struct ExpertMatmul;

impl DeferredOp for ExpertMatmul {
    fn name(&self) -> &'static str {
        "expert matmul"
    }

    fn forward(&self, operands: &[DispatchTensor]) -> DispatchTensor {
        Dispatch::float_matmul(operands[0].clone(), operands[1].clone())
    }

    fn gradient(&self, operand: usize, operands: &[DispatchTensor], of_output: &DispatchTensor) -> DispatchTensor {
        let transposed = Dispatch::float_transpose(operands[1 - operand].clone());
        match operand {
            0 => Dispatch::float_matmul(of_output.clone(), transposed),
            _ => Dispatch::float_matmul(transposed, of_output.clone()),
        }
    }
}

/// Multiplies each expert's rows by its own matrix: `[e, n, d]` by `[e, d, k]` gives `[e, n, k]`.
///
/// In a split schedule the gradient of the matrices is computed in `W`. If one of the two is broadcast over experts,
/// this is Burn's `matmul`.
///
/// # Panics
/// Panics if shapes do not fit, like Burn's `matmul`.
pub fn expert_matmul(x: Tensor<3>, weight: &Param<Tensor<3>>) -> Tensor<3> {
    if x.dims()[0] != weight.val().dims()[0] || !defers(weight) {
        return x.matmul(weight.val());
    }
    Tensor::from_dispatch(deferred(ExpertMatmul, operands(x, weight, None)))
}
