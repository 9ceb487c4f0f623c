//! Cuts a matmul into blocks, packs them and multiplies them.
//!
//! 1. If the target's columns are contiguous, the transposed matmul is computed: kernels write rows.
//! 2. Threads divide the rows or the columns, whichever are more, in whole tiles.
//! 3. Blocks of at most 512 products, 512 columns (1,024 of pairs) and 240 rows are packed and multiplied ([`tiles`]),
//!    along the depth in order. `f32` rows with contiguous elements are read in place, unless they would share sets of
//!    the L1 cache.

use super::kernel::{COLUMNS, Left, Multiply, Numbers, OneByOne, Pairs, ROWS};
use super::pack::{Operand, pack, pack_pairs, panel};
use super::tiles::{cut, tiles};
use super::words::{self, Group, Line, Plain, Rounded, Rounding};
use super::{Bf16, By, Elements, Matrix};
use crate::half::Half;
use rayon::prelude::*;
use std::cell::RefCell;
use std::ops::Range;

/// The depth of a block, whose products are summed in registers.
pub(super) const DEPTH: usize = 512;
/// The rows of a block.
const BLOCK_ROWS: usize = 240;
/// The columns of a block, if a word is a number; twice as many of pairs.
const BLOCK_COLUMNS: usize = 512;
/// Rows at distances that are multiples of this many bytes map to the same sets of the L1 cache.
const SAME_SETS: usize = 4096;

thread_local! {
    /// Packed blocks of rows and of columns: at most 1.5 MiB per thread, kept until it ends.
    static PACKED: RefCell<[Vec<Line>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

#[derive(Clone, Copy)]
struct Shared<T>(T);

// SAFETY: operands are only read, and each piece of a matmul writes its own elements.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T: Copy> Shared<T> {
    fn get(&self) -> T {
        self.0
    }
}

/// Writes a matmul, or adds it to the target; on all threads if `parallel`. `sizes` are rows, columns and depth.
///
/// # Safety
/// The matrices have these sizes. Operands are `f32`, or `bf16` if they are rounded. Nothing else refers to the
/// elements of `to`, which are all distinct.
pub(crate) unsafe fn multiply(
    by: By,
    sizes: [usize; 3],
    to: Matrix<*mut f32>,
    lhs: Matrix<Elements>,
    rhs: Matrix<Elements>,
    add: bool,
    parallel: bool,
) {
    let known = |at: &Elements| match by {
        By::Numbers(_) => matches!(at, Elements::F32(_)),
        By::Rounded(_) => !matches!(at, Elements::Half(_, Half::F16)),
    };
    debug_assert!([lhs.at, rhs.at].iter().all(known), "the kernel reads these types");
    let [rows, columns, depth] = sizes;
    // The kernel writes rows, so if the target's columns are contiguous, everything is transposed. The sums stay the
    // same.
    if to.column != 1 && to.row == 1 {
        let sizes = [columns, rows, depth];
        // SAFETY: guaranteed by the caller.
        return unsafe { along_rows(by, sizes, to.transposed(), rhs.transposed(), lhs.transposed(), add, parallel) };
    }
    // SAFETY: guaranteed by the caller.
    unsafe { along_rows(by, sizes, to, lhs, rhs, add, parallel) };
}

/// # Safety
/// As for [`multiply`].
unsafe fn along_rows(
    by: By,
    [rows, columns, depth]: [usize; 3],
    to: Matrix<*mut f32>,
    lhs: Matrix<Elements>,
    rhs: Matrix<Elements>,
    add: bool,
    parallel: bool,
) {
    let threads = if parallel { rayon::current_num_threads() } else { 1 };
    let shared = Shared((to, lhs, rhs));
    let piece = |rows: Range<usize>, columns: Range<usize>| {
        let (to, lhs, rhs) = shared.get();
        // SAFETY: guaranteed by the caller; pieces are parts of the matmul, and `by` proves the processor's features.
        unsafe {
            match by {
                By::Numbers(_) => blocks::<Numbers>([rows, columns], depth, to, lhs, rhs, add),
                By::Rounded(Bf16 { pairs: true, .. }) => blocks::<Pairs>([rows, columns], depth, to, lhs, rhs, add),
                By::Rounded(Bf16 { pairs: false, .. }) => blocks::<OneByOne>([rows, columns], depth, to, lhs, rhs, add),
            }
        }
    };
    if threads == 1 {
        return piece(0..rows, 0..columns);
    }
    match rows >= columns {
        true => pieces(rows, threads, ROWS).into_par_iter().for_each(|rows| piece(rows, 0..columns)),
        false => pieces(columns, threads, COLUMNS).into_par_iter().for_each(|columns| piece(0..rows, columns)),
    }
}

/// Cuts a size into `count` pieces of about the same size, of whole tiles except the last.
fn pieces(size: usize, count: usize, step: usize) -> Vec<Range<usize>> {
    let each = size.div_ceil(count).next_multiple_of(step).max(step);
    cut(0..size, each).collect()
}

/// Computes a part of a matmul, block by block.
///
/// # Safety
/// As for [`multiply`], on a processor with the instruction.
unsafe fn blocks<M: Multiply>(
    [rows, columns]: [Range<usize>; 2],
    depth: usize,
    to: Matrix<*mut f32>,
    lhs: Matrix<Elements>,
    rhs: Matrix<Elements>,
    add: bool,
) {
    if depth == 0 && !add {
        return rows.for_each(|row| {
            for column in columns.clone() {
                // SAFETY: guaranteed by the caller.
                unsafe { *to.at.offset(row as isize * to.row + column as isize * to.column) = 0.0 };
            }
        });
    }
    PACKED.with_borrow_mut(|[left, right]| {
        for depths in cut(0..depth, DEPTH) {
            let add = add || depths.start > 0;
            for columns in cut(columns.clone(), BLOCK_COLUMNS * M::GROUP.elements(1)) {
                // SAFETY: guaranteed by the caller.
                unsafe { packed::<M, COLUMNS>(rhs.transposed(), columns.clone(), depths.clone(), right) };
                for rows in cut(rows.clone(), BLOCK_ROWS) {
                    // SAFETY: as above.
                    unsafe {
                        let words = M::GROUP.words(depths.len());
                        let left = left_of::<M>(lhs, rows.clone(), depths.clone(), left);
                        tiles::<M>(words, left, right, [rows, columns.clone()], to, add);
                    }
                }
            }
        }
    });
}

/// The words of the left operand, panel by panel: in place, or packed.
///
/// # Safety
/// As for [`packed`].
unsafe fn left_of<M: Multiply>(
    lhs: Matrix<Elements>,
    rows: Range<usize>,
    depths: Range<usize>,
    to: &mut Vec<Line>,
) -> Left {
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

/// Packs some rows of a matrix, over some of its columns.
///
/// # Safety
/// The matrix has these rows and columns, and the processor has the instruction.
unsafe fn packed<M: Multiply, const WIDTH: usize>(
    matrix: Matrix<Elements>,
    lanes: Range<usize>,
    depths: Range<usize>,
    to: &mut Vec<Line>,
) {
    let lines = lanes.len().div_ceil(WIDTH) * panel::<WIDTH>(M::GROUP.words(depths.len()));
    if to.len() < lines {
        to.resize(lines, Line::default());
    }
    let (lane, depth) = (matrix.row, matrix.column);
    // SAFETY: guaranteed by the caller.
    unsafe {
        match matrix.at {
            Elements::F32(at) => {
                let operand = Operand { at, lane, depth };
                match M::GROUP {
                    Group::NUMBER => pack::<Plain, WIDTH>(operand, lanes, depths, to),
                    Group::PAIR => pack_pairs::<Rounding, WIDTH>(operand, lanes, depths, to),
                    _ => pack::<words::OneByOne<f32>, WIDTH>(operand, lanes, depths, to),
                }
            }
            Elements::Half(at, _) => {
                let operand = Operand { at, lane, depth };
                match M::GROUP {
                    Group::PAIR => pack_pairs::<Rounded, WIDTH>(operand, lanes, depths, to),
                    _ => pack::<words::OneByOne<u16>, WIDTH>(operand, lanes, depths, to),
                }
            }
        }
    }
}
