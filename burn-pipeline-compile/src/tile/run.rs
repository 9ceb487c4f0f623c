//! Runs instructions over a tile, in the version for the current processor.
//!
//! Guarantees: all versions are one function, compiled for different features, so results differ only where the
//! processor lacks fused multiply-add.
//!
//! 1. The version is chosen per tile: AVX-512; AVX2 with fused multiply-add; or the target's basic features.
//! 2. Instructions run in order. A half-precision result is rounded in its buffer right after its instruction.
//! 3. Then rows of the tile are added to the rows of sums.

use super::code::{Argument, Buffer, Instruction, Work};
use super::elements::{Extent, Value, map};
use super::rows::{add, reduced};
use crate::half::round;
use crate::processor::vectorized;
use std::slice::from_raw_parts_mut;

/// Some rows of all tensors of a region.
#[derive(Clone, Copy)]
pub(crate) struct Tile<'a> {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) buffers: &'a [Buffer],
}

/// Rows of a tile to be added to rows of a sum.
#[derive(Clone, Copy)]
pub(crate) struct Sum<'a> {
    pub(crate) from: Argument,
    pub(crate) columns: usize,
    /// The distance from one row of the sum to the next.
    pub(crate) step: usize,
    /// The first row of the sum.
    pub(crate) to: *mut f32,
    /// The row of the sum that each row of the tile is added to.
    pub(crate) rows: &'a [usize],
}

/// Runs instructions in order, then adds to sums.
///
/// # Safety
/// All buffers hold a tile of this extent. A written buffer overlaps no other, unless nothing reads that other one
/// any more. A buffer is written before it is read. Sums have the rows in `rows`, hold numbers, and overlap no
/// buffer.
pub(crate) unsafe fn run(code: &[Instruction], tile: Tile<'_>, sums: &[Sum<'_>]) {
    vectorized!(|FMA, code: &[Instruction], tile: Tile<'_>, sums: &[Sum<'_>]| {
        // SAFETY: guaranteed by the caller of `run`.
        unsafe { instructions::<FMA>(code, tile, sums) }
    });
}

/// # Safety
/// As for [`run`].
#[inline(always)]
unsafe fn instructions<const FMA: bool>(code: &[Instruction], tile: Tile<'_>, sums: &[Sum<'_>]) {
    for instruction in code {
        let to = tile.buffers[instruction.to];
        let extent = match instruction.wide {
            true => Extent { rows: tile.rows, columns: tile.columns },
            // Row values are contiguous.
            false => Extent { rows: 1, columns: tile.rows },
        };
        // SAFETY: guaranteed by the caller.
        unsafe {
            match instruction.work {
                Work::Map(function) => {
                    let value = |argument| value(argument, instruction.wide, tile.buffers);
                    map::<FMA>(function, extent, to, instruction.arguments.map(value));
                }
                Work::Reduce(reduction) => {
                    let Argument::Wide(from) = instruction.arguments[0] else { continue };
                    let (from, to) = (tile.buffers[from], to.row_mut(0, tile.rows));
                    for (row, to) in to.iter_mut().enumerate() {
                        to.write(reduced(reduction, from.row(row, tile.columns)));
                    }
                }
            }
            if let Some(half) = instruction.rounds {
                (0..extent.rows).for_each(|row| round(half, to.row_mut(row, extent.columns).assume_init_mut()));
            }
        }
    }
    for sum in sums {
        let (Argument::Wide(from) | Argument::Row(from)) = sum.from else { continue };
        let from = tile.buffers[from];
        for (row, &place) in sum.rows.iter().enumerate().take(tile.rows) {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let to = from_raw_parts_mut(sum.to.add(place * sum.step), sum.columns);
                match sum.from {
                    Argument::Row(_) => to[0] += *from.at.add(row),
                    _ => add(to, from.row(row, sum.columns)),
                }
            }
        }
    }
}

#[inline(always)]
fn value(argument: Argument, wide: bool, buffers: &[Buffer]) -> Value {
    match argument {
        Argument::None => Value::Scalar(0.0),
        Argument::Scalar(value) => Value::Scalar(value),
        Argument::Row(buffer) if wide => Value::Row(buffers[buffer]),
        Argument::Row(buffer) | Argument::Wide(buffer) => Value::Wide(buffers[buffer]),
    }
}
