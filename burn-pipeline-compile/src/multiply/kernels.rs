//! The two operations in which ways to multiply differ: packing a block, and multiplying two packed blocks. Those of
//! vectors are in this file.

use super::kernel::{COLUMNS, Left, Multiply, ROWS};
use super::pack::{Operand, pack, pack_pairs, panel};
use super::tiles::tiles;
use super::words::{self, Group, Line, Plain, Rounded, Rounding};
use super::{Elements, Matrix, To};
use std::ops::Range;

/// Rows at distances that are multiples of this many bytes map to the same sets of the L1 cache.
pub(super) const SAME_SETS: usize = 4096;

/// A packed block of each operand.
pub(super) struct Blocks<'a, L> {
    pub(super) rows: Range<usize>,
    pub(super) columns: Range<usize>,
    pub(super) depths: Range<usize>,
    pub(super) left: L,
    pub(super) right: &'a [Line],
    /// Both operands, as they are in memory.
    pub(super) operands: [Matrix<Elements>; 2],
}

/// How blocks are packed and multiplied.
pub(super) trait Kernels: Sized {
    /// The elements that are packed together.
    const GROUP: Group;
    /// Where the left operand's block is.
    type Left: Copy;

    /// The rows and columns of a block of this depth.
    fn block(depth: usize) -> [usize; 2];

    /// The words of a lane, of this many elements along the depth.
    fn words(depth: usize) -> usize;

    /// Finds a block of the left operand: in place, or packed.
    ///
    /// # Safety
    /// As for [`packed`].
    unsafe fn left(lhs: Matrix<Elements>, rows: Range<usize>, depths: Range<usize>, to: &mut Vec<Line>) -> Self::Left;

    /// Packs a block of the right operand, whose columns are the rows of `rhs`.
    ///
    /// # Safety
    /// As for [`packed`].
    unsafe fn right(rhs: Matrix<Elements>, columns: Range<usize>, depths: Range<usize>, to: &mut Vec<Line>) {
        // SAFETY: guaranteed by the caller.
        unsafe { packed::<Self, COLUMNS>(rhs, columns, depths, to) };
    }

    /// Multiplies two blocks.
    ///
    /// # Safety
    /// As for [`multiply`](super::multiply), on a processor with the instruction; the blocks are packed.
    unsafe fn multiply(blocks: Blocks<'_, Self::Left>, to: Matrix<To>, add: bool);
}

impl<M: Multiply> Kernels for M {
    const GROUP: Group = M::GROUP;
    type Left = Left;

    fn block(_: usize) -> [usize; 2] {
        [240, 512 * M::GROUP.elements(1)]
    }

    fn words(depth: usize) -> usize {
        M::GROUP.words(depth)
    }

    unsafe fn left(lhs: Matrix<Elements>, rows: Range<usize>, depths: Range<usize>, to: &mut Vec<Line>) -> Left {
        if let (Group::NUMBER, Elements::F32(at)) = (M::GROUP, lhs.at)
            && lhs.column == 1
            && !(lhs.row.unsigned_abs() * size_of::<f32>()).is_multiple_of(SAME_SETS)
        {
            let at = at.wrapping_offset(rows.start as isize * lhs.row + depths.start as isize);
            return Left::Rows(at.cast(), lhs.row);
        }
        // SAFETY: guaranteed by the caller.
        unsafe { packed::<M, ROWS>(lhs, rows, depths, to) };
        Left::Packed(to.as_ptr().cast())
    }

    unsafe fn multiply(blocks: Blocks<'_, Left>, to: Matrix<To>, add: bool) {
        let Blocks { rows, columns, depths, left, right, .. } = blocks;
        // SAFETY: guaranteed by the caller.
        unsafe { tiles::<M>(M::GROUP.words(depths.len()), left, right, [rows, columns], to, add) };
    }
}

/// Packs some rows of a matrix, over some of its columns.
///
/// # Safety
/// The matrix has these rows and columns, and the processor has the instruction.
pub(super) unsafe fn packed<K: Kernels, const WIDTH: usize>(
    matrix: Matrix<Elements>,
    lanes: Range<usize>,
    depths: Range<usize>,
    to: &mut Vec<Line>,
) {
    let words = K::words(depths.len());
    let lines = lanes.len().div_ceil(WIDTH) * panel::<WIDTH>(words);
    if to.len() < lines {
        to.resize(lines, Line::default());
    }
    let (lane, depth) = (matrix.row, matrix.column);
    // SAFETY: guaranteed by the caller.
    unsafe {
        match matrix.at {
            Elements::F32(at) => {
                let operand = Operand { at, lane, depth };
                match K::GROUP {
                    Group::NUMBER => pack::<Plain, WIDTH>(operand, lanes, depths, words, to),
                    Group::PAIR => pack_pairs::<Rounding, WIDTH, 1>(operand, lanes, depths, words, to),
                    _ => pack::<words::OneByOne<f32>, WIDTH>(operand, lanes, depths, words, to),
                }
            }
            Elements::Half(at, _) => {
                let operand = Operand { at, lane, depth };
                match K::GROUP {
                    Group::PAIR => pack_pairs::<Rounded, WIDTH, 1>(operand, lanes, depths, words, to),
                    _ => pack::<words::OneByOne<u16>, WIDTH>(operand, lanes, depths, words, to),
                }
            }
        }
    }
}
