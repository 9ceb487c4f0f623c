//! Grouped matmul: each expert's rows, whatever their number, times its own matrix.
//!
//! Guarantees: an expert without rows costs nothing and its matrix gets a zero gradient; rows of no expert give zeros
//! and get zero gradients. In a split schedule the gradient of the matrices is computed in `W`, as in
//! `burn_pipeline::ops::expert_matmul`.
//!
//! 1. On CubeCL devices nothing is read back: the kernels find the expert of a block of rows from the offsets.
//! 2. Elsewhere the offsets are read once, and each expert runs one matmul. That cannot be captured; captured stages
//!    use the same number of rows for all experts instead ([`TokenDispatch`](crate::router::TokenDispatch)).
//!
//! Gale et al., "MegaBlocks" (2022), without padding to blocks.

use super::backend::MoeOps;
use super::kernel_device::refuse_type;
use burn::backend::{AutodiffBackend, Dispatch, DispatchAutodiffContext, DispatchTensor};
use burn::module::Param;
use burn::tensor::{Int, Tensor};
use burn_pipeline::ops::{Deferral, DeferredOp, deferred};

/// Operands `rows` and `weight`; the offsets are not differentiated.
#[derive(Debug)]
struct Grouped {
    offsets: DispatchTensor,
}

impl DeferredOp for Grouped {
    fn name(&self) -> &'static str {
        "grouped matmul"
    }

    fn forward(&self, operands: &[DispatchTensor]) -> DispatchTensor {
        Dispatch::grouped_matmul(operands[0].clone(), operands[1].clone(), self.offsets.clone())
    }

    fn gradient(&self, operand: usize, operands: &[DispatchTensor], of_output: &DispatchTensor) -> DispatchTensor {
        let (other, offsets) = (operands[1 - operand].clone(), self.offsets.clone());
        match operand {
            0 => Dispatch::grouped_matmul_input(of_output.clone(), other, offsets),
            _ => Dispatch::grouped_matmul_weight(other, of_output.clone(), offsets),
        }
    }
}

/// Rows `[n, d]` times the matrices of their experts `[experts, d, h]`: `[n, h]`.
///
/// Expert `e` has the rows from `offsets[e]` to `offsets[e + 1]`, so there is one more offset than experts; see
/// [`PackedRows`](super::PackedRows).
///
/// # Panics
/// Panics if the widths, the element types, or the numbers of matrices and offsets do not match, or if a device with
/// kernels does not compute in the element type.
pub fn grouped_matmul(rows: Tensor<2>, weight: &Param<Tensor<3>>, offsets: Tensor<1, Int>) -> Tensor<2> {
    let ([n, d], [experts, inner, h], [bounds]) = (rows.dims(), weight.val().dims(), offsets.dims());
    assert_eq!(
        (d, bounds),
        (inner, experts + 1),
        "the width of the rows and the number of offsets must match the matrices"
    );
    let (of_rows, of_weight) = (rows.dtype(), weight.val().dtype());
    assert_eq!(of_rows, of_weight, "dtype mismatch: rows are {of_rows:?}, and experts {of_weight:?}");
    if n == 0 {
        return Tensor::zeros([0, h], (&rows.device(), rows.dtype()));
    }
    refuse_type(&rows);
    let offsets = offsets.into_dispatch();
    // Inside a deferral the operation runs without autodiff, so its offsets must be without autodiff too.
    let offsets = if Deferral::is_open() && offsets.autodiff != DispatchAutodiffContext::Disabled {
        Dispatch::int_inner(offsets)
    } else {
        offsets
    };
    let operands = vec![rows.into_dispatch(), weight.val().into_dispatch()];
    Tensor::from_dispatch(deferred(Grouped { offsets }, operands))
}

/// Where the rows of each expert start and end, on the host.
fn bounds(offsets: Tensor<1, Int>) -> Vec<(usize, usize)> {
    let offsets: Vec<usize> = offsets.into_data().iter::<i64>().map(|offset| offset as usize).collect();
    offsets.windows(2).map(|pair| (pair[0], pair[1] - pair[0])).collect()
}

pub(super) fn composed(rows: Tensor<2>, weight: Tensor<3>, offsets: Tensor<1, Int>) -> Tensor<2> {
    let ([n, _], [_, d, h]) = (rows.dims(), weight.dims());
    let bounds = bounds(offsets);
    let taken = bounds.last().map_or(0, |(start, count)| start + count);
    let product = |(expert, &(start, count)): (usize, &(usize, usize))| {
        let matrix = weight.clone().narrow(0, expert, 1).reshape([d, h]);
        (count > 0).then(|| rows.clone().narrow(0, start, count).matmul(matrix))
    };
    let rest = (n > taken).then(|| Tensor::zeros([n - taken, h], (&rows.device(), rows.dtype())));
    Tensor::cat(bounds.iter().enumerate().filter_map(product).chain(rest).collect(), 0)
}

pub(super) fn composed_weight(rows: Tensor<2>, of_output: Tensor<2>, offsets: Tensor<1, Int>) -> Tensor<3> {
    let ([_, d], [_, h]) = (rows.dims(), of_output.dims());
    let product = |(start, count): (usize, usize)| match count {
        0 => Tensor::zeros([1, d, h], (&rows.device(), rows.dtype())),
        _ => {
            let of_output = of_output.clone().narrow(0, start, count);
            rows.clone().narrow(0, start, count).transpose().matmul(of_output).unsqueeze::<3>()
        }
    };
    Tensor::cat(bounds(offsets).into_iter().map(product).collect(), 0)
}
