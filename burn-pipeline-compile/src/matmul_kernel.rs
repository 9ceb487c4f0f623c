//! Chooses the kernel of one matmul: this crate's, or the crate `gemm`'s.
//!
//! Guarantees: for sizes of [`is_addable`], both kernels give the same bits for any strides. For other sizes, the sizes
//! alone choose the kernel. So the choice by strides changes only the time.

use crate::multiply::{self, Avx512, Bf16, By, Elements, Matrix, To};
use gemm::Parallelism;
use std::ops::RangeInclusive;

/// Depths at which every kernel of the crate `gemm` and of this crate sums products in registers, and adds them to
/// the target at once. Larger depths are added in several pieces; very small ones have separate kernels.
const ADDABLE: RangeInclusive<usize> = 3..=512;
/// Matmuls with fewer columns are left to `gemm`.
const FEW: usize = 16;
/// The number of rows from which packing the right operand always pays.
const PACKED_ROWS: usize = 64;
/// Matmuls of at most this many elements have separate kernels.
pub(crate) const SMALL: usize = 16 * 16;

/// Returns true if [`add_matmul`](crate::matmul::add_matmul) supports a matmul of these sizes.
pub(crate) fn is_addable([rows, columns, depth]: [usize; 3]) -> bool {
    rows > 1 && columns > 1 && rows * columns > SMALL && ADDABLE.contains(&depth)
}

/// Writes a matmul of `f32`, or of operands rounded to `bf16`, or adds it to the target.
///
/// # Safety
/// The matrices have these numbers of rows, columns and depth; nothing else refers to the elements of `to`.
///
/// # Panics
/// Panics if an operand is `f16`, or `bf16` and `rounded` is `None`.
pub(crate) unsafe fn multiply(
    sizes: [usize; 3],
    to: Matrix<*mut f32>,
    [lhs, rhs]: [Matrix<Elements>; 2],
    add: bool,
    parallel: Parallelism,
    rounded: Option<Bf16>,
) {
    let [rows, columns, depth] = sizes;
    let plain = matches!((lhs.at, rhs.at), (Elements::F32(_), Elements::F32(_)));
    assert!(plain || rounded.is_some(), "half-precision operands were widened");
    // Few rows or columns would leave most of a split matmul's tiles empty.
    let worth = |found: &Bf16| found.rounds() || rows.min(columns) >= FEW;
    let own = rounded.filter(worth).map(By::Rounded).or_else(|| numbers(sizes, to, [lhs, rhs]));
    let kept = if add { 1.0_f32 } else { 0.0 };
    // SAFETY: guaranteed by the caller.
    unsafe {
        match (own, lhs.at, rhs.at) {
            (Some(by), ..) => {
                let to = Matrix { at: To::F32(to.at), row: to.row, column: to.column };
                multiply::multiply(by, sizes, to, lhs, rhs, add, !matches!(parallel, Parallelism::None));
            }
            (None, Elements::F32(left), Elements::F32(right)) => gemm::gemm(
                rows, columns, depth, to.at, to.column, to.row, add, left, lhs.column, lhs.row, right, rhs.column,
                rhs.row, kept, 1.0_f32, false, false, false, parallel,
            ),
            (None, ..) => unreachable!("half-precision operands were widened"),
        }
    }
}

/// Chooses this crate's `f32` kernels where they are faster: not for few columns, and not if packing the right
/// operand is most of the work. `gemm` reads a right operand with contiguous columns in place.
fn numbers([rows, columns, depth]: [usize; 3], to: Matrix<*mut f32>, [lhs, rhs]: [Matrix<Elements>; 2]) -> Option<By> {
    let transposed = to.column != 1 && to.row == 1 && is_addable([rows, columns, depth]);
    let ([rows, columns], next) = if transposed { ([columns, rows], lhs.row) } else { ([rows, columns], rhs.column) };
    let packing = rows < PACKED_ROWS && next == 1 && is_addable([rows, columns, depth]);
    (rows > 1 && columns >= FEW && !packing).then(Avx512::detect).flatten().map(By::Numbers)
}
