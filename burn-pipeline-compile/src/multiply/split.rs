//! Multiplies blocks of `f32` on matrix tiles, as sums of products of `bf16` parts.
//!
//! Guarantees: an element is off by about as much as a sum of `f32` if there are three parts each (six products), and
//! by 3 · 2⁻¹⁶ of the sum of its products' sizes if there are two (three products). `tests.rs` measures the error.
//! Elements of operands below 2⁻¹¹⁰ lose bits, and below 2⁻¹²⁶ they count as 0. Where the parts give no finite number,
//! the sum is that of `f32`.
//!
//! 1. A number is the sum of its parts: the nearest `bf16`, the nearest one to what that leaves, and so on. Each part
//!    is packed as an operand of its own.
//! 2. All products of parts are summed in the same tiles, those of small parts first for each 32 elements. The
//!    products of the smallest parts are left out.
//! 3. An infinite element has no second part, and a number near the largest one has an infinite first part. The sums
//!    are then not finite, and are computed again from the operands.
//!
//! Henry, Tang and Heinecke, Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations
//! (ARITH 2019, arXiv:1904.06376), call these BF16x3 and BF16x6.

use super::amx::TileUnit;
use super::amx_kernels::{BLOCK, TILE};
use super::kernels::{Blocks, Kernels};
use super::pack::{Operand, pack_pairs, panel};
use super::pack_rows::pack_rows;
use super::sums::Sums;
use super::tiles::cut;
use super::words::{Group, Line, RUN, Rounding};
use super::{DEPTH, Elements, Matrix, To};
use std::marker::PhantomData;
use std::ops::Range;

/// Numbers as this many parts each.
pub(super) struct Split<U, const PARTS: usize>(PhantomData<U>);

/// The packed lines of a part.
fn lines(lanes: usize, depth: usize) -> usize {
    lanes.div_ceil(BLOCK) * panel::<BLOCK>(depth.div_ceil(RUN) * TILE)
}

/// Makes room for all parts.
fn room<const PARTS: usize>(lanes: usize, depth: usize, to: &mut Vec<Line>) {
    let lines = PARTS * lines(lanes, depth);
    if to.len() < lines {
        to.resize(lines, Line::default());
    }
}

/// The matrix as lanes.
fn operand(matrix: Matrix<Elements>) -> Operand<f32> {
    match matrix.at {
        Elements::F32(at) => Operand { at, lane: matrix.row, depth: matrix.column },
        Elements::Half(..) => unreachable!("half-precision operands are not split"),
    }
}

impl<U: TileUnit, const PARTS: usize> Kernels for Split<U, PARTS> {
    const GROUP: Group = Group::PAIR;
    /// Part 0 of the left operand.
    type Left = *const Line;

    /// As many columns as fit into 1.5 MiB.
    fn block(depth: usize) -> [usize; 2] {
        [2 * BLOCK, if depth > DEPTH / 2 { 16 * BLOCK } else { 32 * BLOCK }]
    }

    fn words(depth: usize) -> usize {
        depth.div_ceil(RUN) * TILE
    }

    unsafe fn left(lhs: Matrix<Elements>, rows: Range<usize>, depths: Range<usize>, to: &mut Vec<Line>) -> *const Line {
        room::<PARTS>(rows.len(), depths.len(), to);
        // SAFETY: guaranteed by the caller.
        unsafe { pack_rows::<Rounding, PARTS>(operand(lhs), rows, depths, to) };
        to.as_ptr()
    }

    unsafe fn right(rhs: Matrix<Elements>, columns: Range<usize>, depths: Range<usize>, to: &mut Vec<Line>) {
        room::<PARTS>(columns.len(), depths.len(), to);
        let words = Self::words(depths.len());
        // SAFETY: guaranteed by the caller.
        unsafe { pack_pairs::<Rounding, BLOCK, PARTS>(operand(rhs), columns, depths, words, to) };
    }

    unsafe fn multiply(blocks: Blocks<'_, *const Line>, to: Matrix<To>, add: bool) {
        let Blocks { rows, columns, depths, left, right, operands } = blocks;
        let steps = depths.len().div_ceil(RUN);
        let [next_left, next_right] =
            [&rows, &columns].map(|lanes| lines(lanes.len(), depths.len()) * size_of::<Line>());
        let panel = panel::<BLOCK>(steps * TILE);
        let mut sums = Sums::zeros();
        // SAFETY: guaranteed by the caller. Nothing else that uses tiles runs on this thread between the first call and
        // the last.
        unsafe {
            U::configure();
            for (place, rows) in cut(rows, BLOCK).enumerate() {
                let left = left.wrapping_add(place * panel).cast();
                for (place, columns) in cut(columns.clone(), BLOCK).enumerate() {
                    let right = right[place * panel..].as_ptr().cast();
                    U::multiply_parts::<PARTS>(steps, (left, next_left), (right, next_right), sums.as_mut_ptr());
                    if !are_finite(&sums) {
                        repair(&mut sums, [rows.clone(), columns.clone()], depths.clone(), operands);
                    }
                    let at = to.at.offset(rows.start as isize * to.row + columns.start as isize * to.column);
                    sums.write([rows.len(), columns.len()], Matrix { at, ..to }, add);
                }
            }
            U::release();
        }
    }
}

/// Returns true if all sums are finite.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn are_finite(sums: &Sums) -> bool {
    sums.0.as_flattened().iter().fold(true, |all, sum| all & sum.is_finite())
}

/// Computes sums that are not finite again, in `f32`.
///
/// # Safety
/// The operands have these rows, columns and this depth; the processor has AVX-512.
#[cold]
#[target_feature(enable = "avx512f,fma")]
unsafe fn repair(
    sums: &mut Sums,
    [rows, columns]: [Range<usize>; 2],
    depths: Range<usize>,
    operands: [Matrix<Elements>; 2],
) {
    let [lhs, rhs] = operands.map(operand);
    for (row, sums) in rows.zip(&mut sums.0) {
        for (column, sum) in columns.clone().zip(sums).filter(|(_, sum)| !sum.is_finite()) {
            *sum = depths.clone().fold(0.0_f32, |sum, depth| {
                let left = lhs.at.wrapping_offset(row as isize * lhs.lane + depth as isize * lhs.depth);
                let right = rhs.at.wrapping_offset(depth as isize * rhs.lane + column as isize * rhs.depth);
                // SAFETY: guaranteed by the caller.
                unsafe { (*left).mul_add(*right, sum) }
            });
        }
    }
}
