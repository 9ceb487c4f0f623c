//! Multiplies blocks of `bf16` on matrix tiles ([`amx`](super::amx)).
//!
//! 1. The right operand is packed as pairs, in the same panels of 32 columns as for vectors. Rows of the left operand
//!    need no turning: a tile has 16 rows of 32 elements along the depth. They are read in place if they are `bf16` and
//!    whole, and packed otherwise ([`pack_rows`]). The depth is filled up with 0 to whole tiles.
//! 2. A block of 32 rows and columns is summed in tiles over the depth, and stored to the target, or to a buffer and
//!    from there to the target ([`sums`](super::sums)).

use super::amx::TileUnit;
use super::amx_kernels::{BLOCK, LeftTiles, TILE};
use super::kernel::COLUMNS;
use super::kernels::{Blocks, Kernels, SAME_SETS};
use super::pack::{Operand, panel};
use super::pack_rows::pack_rows;
use super::sums::Sums;
use super::tiles::cut;
use super::words::{Group, Line, RUN, Rounded, Rounding};
use super::{Elements, Matrix, To};
use crate::half::Half;
use std::marker::PhantomData;
use std::ops::Range;

const _: () = assert!(BLOCK == COLUMNS, "the panels of the right operand are as wide as two tiles");

/// Pairs of `bf16` on tiles.
pub(super) struct Tiles<U>(PhantomData<U>);

/// A block of the left operand.
#[derive(Clone, Copy)]
pub(super) struct LeftBlock {
    tiles: LeftTiles,
    /// The bytes from 32 rows to the next ones.
    panel: isize,
}

impl<U: TileUnit> Kernels for Tiles<U> {
    const GROUP: Group = Group::PAIR;
    type Left = LeftBlock;

    fn block(_: usize) -> [usize; 2] {
        [8 * BLOCK, 32 * BLOCK]
    }

    fn words(depth: usize) -> usize {
        depth.div_ceil(RUN) * TILE
    }

    unsafe fn left(lhs: Matrix<Elements>, rows: Range<usize>, depths: Range<usize>, to: &mut Vec<Line>) -> LeftBlock {
        let whole = rows.len().is_multiple_of(BLOCK) && depths.len().is_multiple_of(RUN);
        let bytes = lhs.row * size_of::<u16>() as isize;
        if let Elements::Half(at, Half::Bf16) = lhs.at
            && lhs.column == 1
            && whole
            && !bytes.unsigned_abs().is_multiple_of(SAME_SETS)
        {
            let at = at.wrapping_offset(rows.start as isize * lhs.row + depths.start as isize);
            let tiles = LeftTiles { at: at.cast(), row: bytes, step: (size_of::<u16>() * RUN) as isize };
            return LeftBlock { tiles, panel: BLOCK as isize * bytes };
        }
        let (lines, panels) = (panel::<BLOCK>(Self::words(depths.len())), rows.len().div_ceil(BLOCK));
        if to.len() < panels * lines {
            to.resize(panels * lines, Line::default());
        }
        let (lane, depth) = (lhs.row, lhs.column);
        // SAFETY: guaranteed by the caller.
        unsafe {
            match lhs.at {
                Elements::F32(at) => pack_rows::<Rounding, 1>(Operand { at, lane, depth }, rows, depths, to),
                Elements::Half(at, _) => pack_rows::<Rounded, 1>(Operand { at, lane, depth }, rows, depths, to),
            }
        }
        let line = size_of::<Line>() as isize;
        let tiles = LeftTiles { at: to.as_ptr().cast(), row: line, step: BLOCK as isize * line };
        LeftBlock { tiles, panel: lines as isize * line }
    }

    unsafe fn multiply(blocks: Blocks<'_, LeftBlock>, to: Matrix<To>, add: bool) {
        let Blocks { rows, columns, depths, left, right, .. } = blocks;
        let steps = depths.len().div_ceil(RUN);
        let lines = panel::<BLOCK>(steps * TILE);
        let mut sums = Sums::zeros();
        // SAFETY: guaranteed by the caller. Nothing else runs on this thread between both calls.
        unsafe {
            U::configure();
            for (place, rows) in cut(rows, BLOCK).enumerate() {
                let at = left.tiles.at.wrapping_offset(place as isize * left.panel);
                let left = LeftTiles { at, ..left.tiles };
                for (place, columns) in cut(columns.clone(), BLOCK).enumerate() {
                    let right = right[place * lines..].as_ptr().cast();
                    let at = to.at.offset(rows.start as isize * to.row + columns.start as isize * to.column);
                    let sizes = [rows.len(), columns.len()];
                    match at {
                        To::F32(at) if sizes == [BLOCK; 2] && to.column == 1 && !add => {
                            U::multiply(steps, left, right, at, to.row, sizes);
                        }
                        _ => {
                            U::multiply(steps, left, right, sums.as_mut_ptr(), BLOCK as isize, sizes);
                            sums.write(sizes, Matrix { at, ..to }, add);
                        }
                    }
                }
            }
            U::release();
        }
    }
}
