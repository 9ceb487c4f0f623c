//! Matmuls that read or write half precision.
//!
//! Guarantees: each element is an `f32` sum of products of widened operands, rounded once if the target is half
//! precision. It does not depend on the number of threads. If operands are widened, the sum is that of
//! [`multiply`](crate::matmul_kernel::multiply) over blocks of equal size, up to one, of at most 512 products, in
//! order. Two operands of `bf16` are multiplied without being widened on processors with AVX-512 ([`Bf16`]).
//!
//! 1. If operands are not widened and the depth is that of one block, the kernel rounds each tile into its place.
//! 2. Otherwise the target is cut into blocks of about equal size, because a very small block would get another kernel.
//! 3. Of each operand, one block is widened at a time, along its contiguous elements.
//! 4. A block of a half-precision target is summed in `f32`, then rounded into its place.

use crate::half::Half;
use crate::matmul_kernel::{SMALL, multiply};
use crate::multiply::{self, Bf16, By, DEPTH, Elements, Matrix, Parts, To};
use gemm::Parallelism;
use rayon::prelude::*;
use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::slice::{from_raw_parts, from_raw_parts_mut};

/// The most rows of a block, unless they have no more than [`SMALL`] elements.
const ROWS: usize = 256;
/// The least rows of a block for a thread, if that is enough for [`SMALL`] elements.
const FEW_ROWS: usize = 32;
/// The most columns of a block.
const COLUMNS: usize = 512;

thread_local! {
    /// A block of each operand and of the target: at most 3.5 MiB per thread, kept until it ends.
    static BLOCKS: RefCell<[Vec<f32>; 3]> = const { RefCell::new([const { Vec::new() }; 3]) };
}

/// A matmul, for all of its blocks.
#[derive(Clone, Copy)]
struct Job {
    to: Matrix<To>,
    operands: [Matrix<Elements>; 2],
    depth: usize,
    add: bool,
    pairs: Option<Bf16>,
}

// SAFETY: operands are only read, and each block writes its own elements.
unsafe impl Sync for Job {}

/// Writes a matmul, or adds it to a target of `f32`. If `rounded` is given, operands of `f32` are rounded to `bf16`.
///
/// # Safety
/// The matrices have these numbers of rows, columns and depth; nothing else refers to the elements of `to`.
pub(crate) unsafe fn multiply_half(
    [rows, columns, depth]: [usize; 3],
    to: Matrix<To>,
    operands: [Matrix<Elements>; 2],
    add: bool,
    parallel: Parallelism,
    rounded: Option<Bf16>,
) {
    let job = Job { to, operands, depth, add, pairs: pairs(rounded, &operands) };
    let in_place = job.pairs.is_some() || operands.iter().all(|operand| matches!(operand.at, Elements::F32(_)));
    if let (To::F32(at), true) = (to.at, in_place) {
        let to = Matrix { at, row: to.row, column: to.column };
        // SAFETY: guaranteed by the caller.
        return unsafe { multiply([rows, columns, depth], to, operands, add, parallel, job.pairs) };
    }
    let threads = if let Parallelism::None = parallel { 1 } else { rayon::current_num_threads() };
    if let Some(found) = job.pairs.filter(|found| found.rounds() && depth <= DEPTH) {
        let (by, parallel, [lhs, rhs]) = (By::Rounded(found), !matches!(parallel, Parallelism::None), operands);
        // SAFETY: guaranteed by the caller.
        return unsafe { multiply::multiply(by, [rows, columns, depth], to, lhs, rhs, add, parallel) };
    }
    // Without widened operands a block of the target may be larger, so that operands are packed less often.
    let larger = if in_place { 2 } else { 1 };
    // No block of several is so small that its kernel adds in another order.
    let least = 2 * (SMALL / columns.max(1) + 1);
    let most = rows.div_ceil(threads).clamp(FEW_ROWS, larger * ROWS).max(least);
    let of = |rows: Range<usize>| cut(columns, larger * COLUMNS).map(move |columns| (rows.clone(), columns));
    let blocks = cut(rows, most).flat_map(of);
    // SAFETY: guaranteed by the caller.
    let run = |(rows, columns)| unsafe { job.block(rows, columns, if in_place { usize::MAX } else { DEPTH }) };
    match threads {
        1 => blocks.for_each(run),
        _ => blocks.collect::<Vec<_>>().into_par_iter().for_each(run),
    }
}

/// The proof that operands may be multiplied in `bf16`. Only `f32` is split.
fn pairs(split_or_rounded: Option<Bf16>, operands: &[Matrix<Elements>; 2]) -> Option<Bf16> {
    let rounded = split_or_rounded.filter(|found| found.rounds());
    let all = |known: fn(&Elements) -> bool| operands.iter().all(|operand| known(&operand.at));
    match () {
        () if all(|at| matches!(at, Elements::F32(_))) => split_or_rounded,
        () if all(|at| matches!(at, Elements::Half(_, Half::Bf16))) => rounded.or_else(|| Bf16::detect(Parts::One)),
        () if all(|at| !matches!(at, Elements::Half(_, Half::F16))) => rounded,
        () => None,
    }
}

/// Cuts a size into parts of the same size, up to one, none above `most`.
fn cut(size: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let count = size.div_ceil(most);
    (0..count).map(move |part| part * size / count..(part + 1) * size / count)
}

impl Job {
    /// Computes a block, at most `most` products at a time.
    ///
    /// # Safety
    /// As for [`multiply_half`].
    unsafe fn block(&self, rows: Range<usize>, columns: Range<usize>, most: usize) {
        let Self { to, operands: [lhs, rhs], depth, add, pairs } = *self;
        let place = rows.start as isize * to.row + columns.start as isize * to.column;
        BLOCKS.with_borrow_mut(|[left, right, sums]| {
            let (at, row, column) = match to.at.offset(place) {
                To::F32(at) => (at, to.row, to.column),
                To::Half(..) => (room(sums, rows.len() * columns.len()).as_mut_ptr(), columns.len().cast_signed(), 1),
            };
            let target = Matrix { at, row, column };
            for depths in cut(depth, most).chain((depth == 0).then_some(0..0)) {
                let sizes = [rows.len(), columns.len(), depths.len()];
                // SAFETY: guaranteed by the caller; the block's sums have their own room.
                unsafe {
                    let wide = pairs.is_none();
                    let left = operand(lhs, [rows.clone(), depths.clone()], wide, left);
                    let right = operand(rhs, [depths.clone(), columns.clone()], wide, right);
                    multiply(sizes, target, [left, right], add || depths.start > 0, Parallelism::None, pairs);
                }
            }
            if let To::Half(at, half) = to.at.offset(place) {
                let place = Matrix { at, row: to.row, column: to.column };
                // SAFETY: guaranteed by the caller.
                unsafe { narrow(half, &sums[..rows.len() * columns.len()], place, columns.len()) };
            }
        });
    }
}

/// Room for this many numbers.
fn room(block: &mut Vec<f32>, length: usize) -> &mut [f32] {
    if block.len() < length {
        block.resize(length, 0.0);
    }
    &mut block[..length]
}

/// A part of an operand: in place, or widened into a block.
///
/// # Safety
/// The operand has these rows and columns.
unsafe fn operand(
    matrix: Matrix<Elements>,
    [rows, columns]: [Range<usize>; 2],
    wide: bool,
    block: &mut Vec<f32>,
) -> Matrix<Elements> {
    let Matrix { at, row, column } = matrix;
    let place = rows.start as isize * row + columns.start as isize * column;
    let (rows, columns) = (rows.len(), columns.len());
    let (at, half) = match at {
        Elements::F32(at) => return Matrix { at: Elements::F32(at.wrapping_offset(place)), ..matrix },
        Elements::Half(at, half) => (at.wrapping_offset(place), half),
    };
    if !wide {
        return Matrix { at: Elements::Half(at, half), ..matrix };
    }
    let block = room(block, rows * columns);
    let upright = row == 1 && column != 1;
    let (length, line, step) = if upright { (rows, column, row) } else { (columns, row, column) };
    for (place, to) in block.chunks_exact_mut(length.max(1)).enumerate() {
        let from = at.wrapping_offset(place as isize * line);
        match step {
            // SAFETY: guaranteed by the caller.
            1 => half.widen(unsafe { from_raw_parts(from, length) }, to),
            _ => to.iter_mut().enumerate().for_each(|(place, to)| {
                // SAFETY: guaranteed by the caller.
                *to = half.number(unsafe { *from.wrapping_offset(place as isize * step) });
            }),
        }
    }
    let (row, column) = if upright { (1, rows.cast_signed()) } else { (columns.cast_signed(), 1) };
    Matrix { at: Elements::F32(block.as_ptr()), row, column }
}

/// Rounds a block of sums into its place.
///
/// # Safety
/// The target has these elements, and nothing else refers to them.
unsafe fn narrow(half: Half, sums: &[f32], to: Matrix<*mut u16>, columns: usize) {
    for (row, sums) in sums.chunks_exact(columns.max(1)).enumerate() {
        let to_row = to.at.wrapping_offset(row as isize * to.row);
        match to.column {
            // SAFETY: guaranteed by the caller.
            1 => half.narrow(sums, unsafe { from_raw_parts_mut(to_row.cast::<MaybeUninit<u16>>(), columns) }),
            step => sums.iter().enumerate().for_each(|(place, sum)| {
                // SAFETY: as above.
                unsafe { *to_row.wrapping_offset(place as isize * step) = half.bits(half.rounded(*sum)) };
            }),
        }
    }
}
