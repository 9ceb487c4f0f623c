//! Cuts a matmul into blocks, packs them and multiplies them.
//!
//! 1. If the target's columns are contiguous, the transposed matmul is computed: kernels write rows.
//! 2. Threads divide the rows or the columns, whichever are more, in whole tiles.
//! 3. Blocks of at most 512 products, 512 columns (1,024 of pairs) and 240 rows (256 on matrix tiles) are packed and
//!    multiplied ([`tiles`], [`matrix_tiles`](super::matrix_tiles)), along the depth in order. `f32` rows with
//!    contiguous elements are read in place, unless they would share sets of the L1 cache.

use super::amx::{self, TileUnit};
use super::kernel::{COLUMNS, Numbers, OneByOne, Pairs, ROWS};
use super::kernels::{Blocks, Kernels};
use super::matrix_tiles::Tiles;
use super::split::Split;
use super::tiles::cut;
use super::words::Line;
use super::{By, DEPTH, Elements, Matrix, Parts, To, Way};
use crate::half::Half;
use rayon::prelude::*;
use std::cell::RefCell;
use std::ops::Range;

/// Threads divide rows and columns in whole tiles of every kernel.
const PIECE: usize = 96;
const _: () = assert!(PIECE.is_multiple_of(ROWS) && PIECE.is_multiple_of(COLUMNS));

thread_local! {
    /// Packed blocks of rows and of columns: at most 1.7 MiB per thread, kept until it ends.
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
/// The matrices have these sizes. Operands are `f32`, or `bf16` if they are rounded. A target in half precision is not
/// added to, and takes sums over a depth of at most [`DEPTH`], which are rounded once. Nothing else refers to the
/// elements of `to`, which are all distinct.
pub(crate) unsafe fn multiply(
    by: By,
    sizes: [usize; 3],
    to: Matrix<To>,
    lhs: Matrix<Elements>,
    rhs: Matrix<Elements>,
    add: bool,
    parallel: bool,
) {
    let known = |at: &Elements| match by {
        By::Numbers(_) => matches!(at, Elements::F32(_)),
        By::Rounded(rounded) if rounded.rounds() => !matches!(at, Elements::Half(_, Half::F16)),
        By::Rounded(_) => matches!(at, Elements::F32(_)),
    };
    debug_assert!([lhs.at, rhs.at].iter().all(known), "the kernel reads these types");
    let [rows, columns, depth] = sizes;
    // The kernel writes rows, so if the target's columns are contiguous, everything is transposed. The sums stay the
    // same, unless products of parts would be summed in another order.
    let turns = !matches!(by, By::Rounded(found) if !found.rounds());
    if turns && to.column != 1 && to.row == 1 {
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
    to: Matrix<To>,
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
                By::Rounded(rounded) => match rounded.way {
                    Way::OneByOne => blocks::<OneByOne>([rows, columns], depth, to, lhs, rhs, add),
                    Way::Pairs => blocks::<Pairs>([rows, columns], depth, to, lhs, rhs, add),
                    Way::Tiles(_, parts) => {
                        on_tiles::<amx::Processor>(parts, [rows, columns], depth, to, [lhs, rhs], add);
                    }
                    #[cfg(test)]
                    Way::ModelOfTiles(parts) => {
                        on_tiles::<super::model::Model>(parts, [rows, columns], depth, to, [lhs, rhs], add);
                    }
                },
            }
        }
    };
    if threads == 1 {
        return piece(0..rows, 0..columns);
    }
    match rows >= columns {
        true => pieces(rows, threads).into_par_iter().for_each(|rows| piece(rows, 0..columns)),
        false => pieces(columns, threads).into_par_iter().for_each(|columns| piece(0..rows, columns)),
    }
}

/// [`blocks`], on matrix tiles.
///
/// # Safety
/// As for [`multiply`].
unsafe fn on_tiles<U: TileUnit>(
    parts: Parts,
    ranges: [Range<usize>; 2],
    depth: usize,
    to: Matrix<To>,
    [lhs, rhs]: [Matrix<Elements>; 2],
    add: bool,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match parts {
            Parts::One => blocks::<Tiles<U>>(ranges, depth, to, lhs, rhs, add),
            Parts::Two => blocks::<Split<U, 2>>(ranges, depth, to, lhs, rhs, add),
            Parts::Three => blocks::<Split<U, 3>>(ranges, depth, to, lhs, rhs, add),
        }
    }
}

/// Cuts a size into `count` pieces of about the same size, of whole tiles except the last.
fn pieces(size: usize, count: usize) -> Vec<Range<usize>> {
    let each = size.div_ceil(count).next_multiple_of(PIECE).max(PIECE);
    cut(0..size, each).collect()
}

/// Computes a part of a matmul, block by block.
///
/// # Safety
/// As for [`multiply`], on a processor with the instruction.
unsafe fn blocks<K: Kernels>(
    [rows, columns]: [Range<usize>; 2],
    depth: usize,
    to: Matrix<To>,
    lhs: Matrix<Elements>,
    rhs: Matrix<Elements>,
    add: bool,
) {
    if depth == 0 && !add {
        return rows.for_each(|row| {
            for column in columns.clone() {
                // SAFETY: guaranteed by the caller.
                unsafe { to.at.offset(row as isize * to.row + column as isize * to.column).clear() };
            }
        });
    }
    PACKED.with_borrow_mut(|[left, right]| {
        for depths in cut(0..depth, DEPTH) {
            let (add, [block_rows, block_columns]) = (add || depths.start > 0, K::block(depths.len()));
            for columns in cut(columns.clone(), block_columns) {
                // SAFETY: guaranteed by the caller.
                unsafe { K::right(rhs.transposed(), columns.clone(), depths.clone(), right) };
                for rows in cut(rows.clone(), block_rows) {
                    let (columns, depths, operands) = (columns.clone(), depths.clone(), [lhs, rhs]);
                    // SAFETY: as above.
                    unsafe {
                        let left = K::left(lhs, rows.clone(), depths.clone(), left);
                        K::multiply(Blocks { rows, columns, depths, left, right, operands }, to, add);
                    }
                }
            }
        }
    });
}
