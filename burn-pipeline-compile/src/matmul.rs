//! Batched matmuls on operands with any strides.
//!
//! Guarantees: the numbers are those of [`multiply`](mod@crate::multiply) if operands are rounded, and on processors
//! with AVX-512 for most matmuls of more than one row and at least 16 columns (not for those in which packing is most
//! of the work). All other matmuls give the numbers of Flex's own matmul, which calls the same kernels (crate `gemm`)
//! with the same sizes and strides. The output is not cleared before. A matmul added to a sum ([`add_matmul`]) gives
//! the same bits as if it were written and then added.
//!
//! So a weight's gradient is added to the running sum at once only for up to 512 rows per microbatch: more rows are
//! added in several pieces. Otherwise bits would depend on the schedule, which decides which gradients come early and
//! are added later.

use crate::half::{Half, round};
use crate::half_matmul::multiply_half;
use crate::multiply::{Bf16, Elements, Matrix, To};
use crate::storage::Fresh;
use burn::backend::flex::{FlexTensor, Layout};
use burn::backend::ir::TensorIr;
use gemm::Parallelism;
use rayon::prelude::*;

/// Matmuls with fewer multiplications run on one thread, as in Flex.
const PARALLEL: usize = 192 * 192 * 192;
/// The matmuls of batches with fewer multiplications run one after the other, as in Flex.
pub(crate) const PARALLEL_BATCH: usize = 128 * 128 * 128;

/// Multiplies two batches of matrices. Rounds operands to `bf16` if `rounded` is given.
///
/// # Safety
/// The matmul of the operands has the output's shape.
pub(crate) unsafe fn matmul(
    lhs: &FlexTensor,
    rhs: &FlexTensor,
    output: &TensorIr,
    rounded: Option<Bf16>,
) -> FlexTensor {
    let mut fresh = Fresh::of(output);
    let layout = Layout::contiguous(output.shape.clone());
    let to = To::new(fresh.as_bytes(), Half::of(output));
    // SAFETY: the storage has the layout's elements; the caller guarantees the rest.
    unsafe { multiply_into(lhs, rhs, &layout, to, rounded) };
    // SAFETY: the matmuls have written every matrix.
    unsafe { fresh.tensor(output) }
}

/// Adds the matmul of two matrices to a sum, in place if the sum's storage is not shared. Returns the sum in the
/// shape of the matmul. Only for sizes for which [`is_addable`](crate::matmul_kernel::is_addable) is true.
///
/// # Safety
/// The matmul of the operands has the output's shape, and the sum has as many elements.
pub(crate) unsafe fn add_matmul(
    lhs: &FlexTensor,
    rhs: &FlexTensor,
    sum: FlexTensor,
    output: &TensorIr,
    rounded: Option<Bf16>,
) -> FlexTensor {
    let layout = Layout::contiguous(output.shape.clone());
    let in_order = sum.is_contiguous() && sum.storage::<f32>().len() == layout.num_elements();
    let mut sum = if in_order { sum } else { sum.to_contiguous() };
    let (batch, sizes) = sizes(lhs, &output.shape);
    let at = To::F32(sum.storage_mut::<f32>().as_mut_ptr());
    let to = Matrix { at, row: sizes[1].cast_signed(), column: 1 };
    let operands = [lhs, rhs].map(|operand| matrix(operand, 0, batch));
    let parallel = if sizes.iter().product::<usize>() >= PARALLEL { Parallelism::Rayon(0) } else { Parallelism::None };
    // SAFETY: the sum has all elements of the matmul, and nothing else refers to them.
    unsafe { multiply_half(sizes, to, operands, true, parallel, rounded) };
    sum.with_layout(layout)
}

/// Writes one matrix of a batched matmul, in row-major order, as `f32`: rounded if the matmul's result is half
/// precision.
///
/// # Safety
/// The matmul of the operands has the output's shape, and `place` is an index of its batch. `to` has room for a
/// matrix, and nothing else refers to it.
pub(crate) unsafe fn multiply_one(
    operands: [&FlexTensor; 2],
    output: &TensorIr,
    place: usize,
    at: *mut f32,
    rounded: Option<Bf16>,
) {
    let (batch, sizes) = sizes(operands[0], &output.shape);
    let operands = operands.map(|operand| matrix(operand, place, batch));
    let to = Matrix { at: To::F32(at), row: sizes[1].cast_signed(), column: 1 };
    // SAFETY: guaranteed by the caller.
    unsafe {
        multiply_half(sizes, to, operands, false, Parallelism::None, rounded);
        if let Some(half) = Half::of(output) {
            round(half, std::slice::from_raw_parts_mut(at, sizes[0] * sizes[1]));
        }
    }
}

/// Writes the matmul of two batches of matrices with a layout.
///
/// # Safety
/// The matmul of the operands has the layout's shape; `to` has all elements of the layout, and nothing else refers to
/// them.
pub(crate) unsafe fn multiply_into(lhs: &FlexTensor, rhs: &FlexTensor, layout: &Layout, to: To, rounded: Option<Bf16>) {
    let (batch, sizes) = sizes(lhs, layout.shape());
    let count: usize = batch.iter().product();
    let one = |place: usize, parallel| {
        let operands = [lhs, rhs].map(|operand| matrix(operand, place, batch));
        let (offset, row, column) = place_of(layout, place, batch);
        // SAFETY: guaranteed by the caller.
        unsafe {
            let to = Matrix { at: to.offset(offset), row, column };
            multiply_half(sizes, to, operands, false, parallel, rounded);
        }
    };
    let work: usize = sizes.iter().product();
    let all = work * count;
    match (work >= PARALLEL, all >= PARALLEL_BATCH && count > 1, count >= 4 && all >= PARALLEL_BATCH) {
        (true, _, false) => (0..count).for_each(|place| one(place, Parallelism::Rayon(0))),
        (_, true, _) => (0..count).into_par_iter().for_each(|place| one(place, Parallelism::None)),
        _ => (0..count).for_each(|place| one(place, Parallelism::None)),
    }
}

/// The offset of one matrix of a batch, and its strides of rows and columns.
fn place_of(layout: &Layout, place: usize, batch: &[usize]) -> (isize, isize, isize) {
    let (shape, strides) = (layout.shape(), layout.strides());
    let own = shape.num_dims() - 2;
    let (mut offset, mut left) = (layout.start_offset() as isize, place);
    for (dim, &size) in batch.iter().enumerate().rev() {
        if let Some(dim) = (dim + own).checked_sub(batch.len())
            && shape[dim] > 1
        {
            offset += (left % size) as isize * strides[dim];
        }
        left /= size;
    }
    (offset, strides[own], strides[own + 1])
}

/// One matrix of a batch.
fn matrix(tensor: &FlexTensor, place: usize, batch: &[usize]) -> Matrix<Elements> {
    let (offset, row, column) = place_of(tensor.layout(), place, batch);
    // A pointer to an element of the tensor, or to none if it is empty.
    let at = match Half::of_dtype(tensor.dtype()) {
        Some(half) => Elements::Half(half.elements(tensor).as_ptr().wrapping_offset(offset), half),
        None => Elements::F32(tensor.storage::<f32>().as_ptr().wrapping_offset(offset)),
    };
    Matrix { at, row, column }
}

/// The dimensions of a batch, and the rows, columns and depth of its matmuls.
fn sizes<'a>(lhs: &FlexTensor, output: &'a [usize]) -> (&'a [usize], [usize; 3]) {
    let (batch, [rows, columns]) = output.split_last_chunk::<2>().expect("a matmul has rows and columns");
    (batch, [*rows, *columns, lhs.layout().shape().last().copied().unwrap_or(1)])
}
