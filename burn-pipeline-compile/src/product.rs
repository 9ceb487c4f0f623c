//! Products of matrices, batched, on operands as they lie.
//!
//! Guarantees: the numbers of [`multiply`](mod@multiply) where operands are rounded, and on processors with AVX-512 for products of more
//! than one row and 16 columns or more, up to those that cost little but packing. All others are the numbers of Flex's own product, which calls the same kernels (crate `gemm`) with the same sizes and strides.
//! What is written over is not cleared before. A product that is added to a sum ([`add_product`]) gives the bits that it would give if it was written and then added.

use crate::multiply::{self, Avx512, Bf16, By, Elements};
use crate::storage::Fresh;
use burn::backend::flex::{FlexTensor, Layout};
use burn::backend::ir::{TensorId, TensorIr};
use burn::tensor::{DType, Shape};
use gemm::Parallelism;
use rayon::prelude::*;
use std::ops::RangeInclusive;

/// Products with fewer multiplications than this run on one thread, as in Flex.
const PARALLEL: usize = 192 * 192 * 192;
/// Batches with fewer run one after the other, as in Flex.
pub(crate) const PARALLEL_BATCH: usize = 128 * 128 * 128;

/// One matrix of a batch as it lies.
#[derive(Clone, Copy)]
struct Matrix<'a> {
    values: Values<'a>,
    layout: &'a Layout,
}

#[derive(Clone, Copy)]
enum Values<'a> {
    F32(&'a [f32]),
    /// Rounded already.
    Bf16(&'a [burn::tensor::bf16]),
}

#[derive(Clone, Copy)]
struct Shared(*mut f32);

// SAFETY: each product of a batch writes a matrix of its own.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// Multiplies two batches of matrices; elements are rounded to `bf16` where that is said.
///
/// # Safety
/// The operands' product has the output's shape.
pub(crate) unsafe fn product(
    lhs: &FlexTensor,
    rhs: &FlexTensor,
    output: &TensorIr,
    rounded: Option<Bf16>,
) -> (TensorId, FlexTensor) {
    let mut fresh = Fresh::floats(output.shape.num_elements());
    let layout = Layout::contiguous(output.shape.clone());
    // SAFETY: the storage has the layout's elements; the rest is the caller's promise.
    unsafe { multiply_into(lhs, rhs, &layout, fresh.as_floats(), rounded) };
    // SAFETY: the products have written every matrix.
    let mut given = unsafe { fresh.tensors(std::slice::from_ref(output)) };
    given.swap_remove(0)
}

/// Depths whose products are summed in registers, by every kernel of the crate `gemm` and by ours: such a product is added to what is
/// there at once. Deeper ones are added piece by piece, and very shallow ones have kernels of their own.
const ADDABLE: RangeInclusive<usize> = 3..=512;
/// Products of fewer columns are left to `gemm`.
const FEW: usize = 16;
/// Rows from which on packing the right operand pays wherever it lies.
const PACKED_ROWS: usize = 64;
/// Smaller products have kernels of their own.
const SMALL: usize = 16 * 16;

/// Can a product of these sizes be added to a sum by [`add_product`]?
pub(crate) fn is_addable([rows, columns, depth]: [usize; 3]) -> bool {
    rows > 1 && columns > 1 && rows * columns > SMALL && ADDABLE.contains(&depth)
}

/// Adds the product of two matrices to a sum, in its storage if nothing else holds that; returns the sum in the shape of the
/// product. For sizes that [`is_addable`] names.
///
/// # Safety
/// The operands' product has the output's shape, and the sum as many elements.
pub(crate) unsafe fn add_product(
    lhs: &FlexTensor,
    rhs: &FlexTensor,
    sum: FlexTensor,
    output: &TensorIr,
    rounded: Option<Bf16>,
) -> FlexTensor {
    let layout = Layout::contiguous(output.shape.clone());
    let in_order = sum.is_contiguous() && sum.storage::<f32>().len() == layout.num_elements();
    let mut sum = if in_order { sum } else { sum.to_contiguous() };
    let (rows, columns) = (output.shape[0], output.shape[1]);
    let sizes = [rows, columns, lhs.layout().shape()[1]];
    let to = multiply::Matrix { at: sum.storage_mut::<f32>().as_mut_ptr(), row: columns.cast_signed(), column: 1 };
    let (left, right) = (Matrix::of(lhs).matrix(0, &[]), Matrix::of(rhs).matrix(0, &[]));
    let parallel = if sizes.iter().product::<usize>() >= PARALLEL { Parallelism::Rayon(0) } else { Parallelism::None };
    // SAFETY: the sum has all elements of the product, and nothing else refers to them.
    unsafe { multiply(sizes, to, [left, right], true, parallel, rounded) };
    sum.with_layout(layout)
}

/// Writes one matrix of the product of two batches, in order.
///
/// # Safety
/// The operands' product has this shape, whose batch has that place; `to` has room for a matrix, and nothing else refers to it.
pub(crate) unsafe fn multiply_one(
    [lhs, rhs]: [&FlexTensor; 2],
    shape: &Shape,
    place: usize,
    at: *mut f32,
    rounded: Option<Bf16>,
) {
    let (lhs, rhs) = (Matrix::of(lhs), Matrix::of(rhs));
    let (batch, rank) = (&shape[..shape.num_dims() - 2], shape.num_dims());
    let sizes = [shape[rank - 2], shape[rank - 1], lhs.layout.shape().last().copied().unwrap_or(1)];
    let operands = [lhs.matrix(place, batch), rhs.matrix(place, batch)];
    let to = multiply::Matrix { at, row: sizes[1].cast_signed(), column: 1 };
    // SAFETY: the caller's promise.
    unsafe { multiply(sizes, to, operands, false, Parallelism::None, rounded) };
}

/// Writes the product of two batches of matrices where a layout says.
///
/// # Safety
/// The operands' product has the layout's shape; `to` has all elements of the layout, and nothing else refers to them.
pub(crate) unsafe fn multiply_into(
    lhs: &FlexTensor,
    rhs: &FlexTensor,
    layout: &Layout,
    to: *mut f32,
    rounded: Option<Bf16>,
) {
    let (lhs, rhs) = (Matrix::of(lhs), Matrix::of(rhs));
    let shape = layout.shape();
    let rank = shape.num_dims();
    let sizes = [shape[rank - 2], shape[rank - 1], lhs.layout.shape().last().copied().unwrap_or(1)];
    let batch = &shape[..rank - 2];
    let count: usize = batch.iter().product();
    let to = Shared(to);
    let one = |place: usize, parallel| {
        let operands = [lhs.matrix(place, batch), rhs.matrix(place, batch)];
        let (offset, row, column) = place_of(layout, place, batch);
        // SAFETY: the caller's promise.
        unsafe {
            let to = multiply::Matrix { at: to.at(offset), row, column };
            multiply(sizes, to, operands, false, parallel, rounded);
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

/// Where one matrix of a batch begins, and its strides of rows and columns.
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

impl Shared {
    /// # Safety
    /// The place is within the storage.
    unsafe fn at(self, place: isize) -> *mut f32 {
        // SAFETY: the caller's promise.
        unsafe { self.0.offset(place) }
    }
}

impl<'a> Matrix<'a> {
    fn of(tensor: &'a FlexTensor) -> Self {
        let values = match tensor.dtype() {
            DType::BF16 => Values::Bf16(tensor.storage()),
            _ => Values::F32(tensor.storage()),
        };
        Self { values, layout: tensor.layout() }
    }

    /// One matrix of the batch.
    fn matrix(self, place: usize, batch: &[usize]) -> multiply::Matrix<Elements> {
        let (offset, row, column) = place_of(self.layout, place, batch);
        // An element of the tensor, or of none if it is empty.
        let at = match self.values {
            Values::F32(values) => Elements::F32(values.as_ptr().wrapping_offset(offset)),
            Values::Bf16(values) => Elements::Bf16(values.as_ptr().wrapping_offset(offset).cast()),
        };
        multiply::Matrix { at, row, column }
    }
}

/// Writes a product, or adds it to what is there.
///
/// # Safety
/// The matrices have these numbers of rows, columns and depth; nothing else refers to the elements of `to`.
///
/// # Panics
/// If an operand was rounded, and products are not.
pub(crate) unsafe fn multiply(
    sizes: [usize; 3],
    to: multiply::Matrix<*mut f32>,
    [lhs, rhs]: [multiply::Matrix<Elements>; 2],
    add: bool,
    parallel: Parallelism,
    rounded: Option<Bf16>,
) {
    let [rows, columns, depth] = sizes;
    let plain = matches!((lhs.at, rhs.at), (Elements::F32(_), Elements::F32(_)));
    assert!(plain || rounded.is_some(), "operands are rounded only where products are");
    let own = rounded.map(By::Pairs).or_else(|| numbers(sizes, to, [lhs, rhs]));
    let kept = if add { 1.0_f32 } else { 0.0 };
    // SAFETY: the caller's promise.
    unsafe {
        match (own, lhs.at, rhs.at) {
            (Some(by), ..) => multiply::multiply(by, sizes, to, lhs, rhs, add, !matches!(parallel, Parallelism::None)),
            (None, Elements::F32(left), Elements::F32(right)) => gemm::gemm(
                rows, columns, depth, to.at, to.column, to.row, add, left, lhs.column, lhs.row, right, rhs.column,
                rhs.row, kept, 1.0_f32, false, false, false, parallel,
            ),
            (None, ..) => unreachable!("operands are rounded only where products are"),
        }
    }
}

/// Own products of `f32`, where they are faster: not of few columns, nor where packing the right operand is most of the work. `gemm` reads one
/// whose columns follow each other where it lies, and gives the same bits to such depths. So how operands lie decides nothing but time.
fn numbers(
    [rows, columns, depth]: [usize; 3],
    to: multiply::Matrix<*mut f32>,
    [lhs, rhs]: [multiply::Matrix<Elements>; 2],
) -> Option<By> {
    let turned = to.column != 1 && to.row == 1;
    let ([rows, columns], next) = if turned { ([columns, rows], lhs.row) } else { ([rows, columns], rhs.column) };
    let packing = rows < PACKED_ROWS && next == 1 && is_addable([rows, columns, depth]);
    (rows > 1 && columns >= FEW && !packing).then(Avx512::detect).flatten().map(By::Numbers)
}
