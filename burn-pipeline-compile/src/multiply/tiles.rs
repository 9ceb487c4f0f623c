//! Multiplies two packed blocks, tile by tile.
//!
//! Tiles at the end of a block have fewer rows or columns. If the target is half precision, or its elements are
//! contiguous neither by row nor by column, a tile is computed in a buffer, and written from there
//! ([`sums`](super::sums)).

use super::kernel::{COLUMNS, Left, Multiply, ROWS, Target};
use super::pack::panel;
use super::sums::Sums;
use super::words::{LANES, Line};
use super::{Matrix, To};
use std::ops::Range;

/// The fewest columns that take two vectors.
const WIDE: usize = LANES + 1;

/// Multiplies two blocks, tile by tile: a panel of rows stays in the L1 cache, and panels of columns stream from L2.
///
/// # Safety
/// The blocks have these rows and columns, and this many words; otherwise as for [`multiply`], on a processor with
/// the instruction.
pub(super) unsafe fn tiles<M: Multiply>(
    words: usize,
    left: Left,
    right: &[Line],
    [rows, columns]: [Range<usize>; 2],
    to: Matrix<To>,
    add: bool,
) {
    for (place, row) in cut(rows, ROWS).enumerate() {
        let left = match left {
            Left::Packed(at) => Left::Packed(at.wrapping_add(place * panel::<ROWS>(words) * LANES)),
            Left::Rows(..) => left.at_row(place * ROWS),
        };
        for (place, column) in cut(columns.clone(), COLUMNS).enumerate() {
            let right = right[place * panel::<COLUMNS>(words)..].as_ptr().cast();
            let at = to.at.offset(row.start as isize * to.row + column.start as isize * to.column);
            let (rows, columns) = (row.len(), column.len());
            // SAFETY: guaranteed by the caller; a buffer has room for a tile.
            unsafe {
                match at {
                    To::F32(at) if to.column == 1 => {
                        tile::<M>(words, left, right, Target { at, row: to.row, rows, columns, add });
                    }
                    _ => {
                        let mut sums = Sums::zeros();
                        let made = sums.as_mut_ptr();
                        let target = Target { at: made, row: COLUMNS as isize, rows, columns, add: false };
                        tile::<M>(words, left, right, target);
                        sums.write([rows, columns], Matrix { at, ..to }, add);
                    }
                }
            }
        }
    }
}

/// # Safety
/// As for [`tiles`].
#[inline(always)]
unsafe fn tile<M: Multiply>(words: usize, left: Left, right: *const u32, to: Target) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match (to.rows, to.columns) {
            (ROWS, WIDE..) => M::tile::<ROWS, 2>(words, left, right, to),
            (_, WIDE..) => few_rows::<M, 2>(words, left, right, to),
            _ => few_rows::<M, 1>(words, left, right, to),
        }
    }
}

type Tile = unsafe fn(usize, Left, *const u32, Target);

/// Computes at most as many rows as a tile has, a few at a time.
///
/// # Safety
/// As for [`tiles`].
unsafe fn few_rows<M: Multiply, const V: usize>(words: usize, left: Left, right: *const u32, to: Target) {
    let mut done = 0;
    while done < to.rows {
        let left = left.at_row(done);
        let to = Target { at: to.at.wrapping_offset(done as isize * to.row), ..to };
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (rows, tile): (usize, Tile) = match to.rows - done {
                8.. => (8, M::tile::<8, V>),
                4.. => (4, M::tile::<4, V>),
                2.. => (2, M::tile::<2, V>),
                _ => (1, M::tile::<1, V>),
            };
            tile(words, left, right, to);
            done += rows;
        }
    }
}

/// Cuts a range into parts of this size, except the last.
pub(super) fn cut(range: Range<usize>, each: usize) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(each).map(move |first| first..range.end.min(first + each))
}
