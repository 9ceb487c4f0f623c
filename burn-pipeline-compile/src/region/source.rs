//! An input of a region during a run: read in place, or copied tile by tile.
//!
//! 1. An input is read in place if it is `f32`, its elements (or its values per row) are contiguous, and rows have one
//!    distance over at least a quarter of a tile's rows.
//! 2. All others are copied into the tile: masks become 0 and 1, half precision is widened.
//! 3. The next tile is prefetched while a tile is computed.
//! 4. Blocks of a batch of matmuls are contiguous `f32`, so they are read in place.

use super::places::Places;
use super::{Input, Region};
use crate::half::Half;
use crate::processor::{prefetch, vectorized};
use crate::storage::Shared;
use crate::tile::Buffer;
use burn::backend::flex::{FlexTensor, Layout};
use std::ops::Range;

/// Rows with fewer elements are prefetched only if they are contiguous with each other.
const SHORT: usize = 32;

/// The type of an input's elements.
#[derive(Clone, Copy, PartialEq)]
enum Elements {
    F32,
    Mask,
    Half(Half),
}

/// An input of a region during a run.
#[derive(Clone)]
pub(super) struct Source<'a> {
    /// The tensor; `None` for an input that is written block by block.
    tensor: Option<&'a FlexTensor>,
    /// The pointer from which offsets are counted.
    pub(super) floats: Shared<f32>,
    pub(super) places: Places,
    pub(super) wide: bool,
    elements: Elements,
    /// True if it is read in place; otherwise it is copied, tile by tile.
    pub(super) direct: bool,
}

impl<'a> Source<'a> {
    /// An input of a region. Without a tensor, it is written block by block.
    pub(super) fn new(region: &Region, input: &Input, tensor: Option<&'a FlexTensor>) -> Self {
        let places = match tensor {
            Some(tensor) => Places::of(input, tensor.layout()),
            None => Places::of(input, &Layout::contiguous(input.tensor.shape.clone())),
        };
        let elements = match Half::of(&input.tensor) {
            _ if crate::graph::is_mask(&input.tensor) => Elements::Mask,
            // Blocks are written as `f32`.
            Some(half) if tensor.is_some() => Elements::Half(half),
            _ => Elements::F32,
        };
        let plain = elements == Elements::F32;
        let (tile_rows, _) = region.tile();
        let long_runs = places.run().is_none_or(|run| 4 * run >= tile_rows);
        let in_order = match input.wide && region.columns > 1 {
            true => places.inner == 1 && places.step() >= 0,
            false => places.step() == 1 || region.rows == 1,
        };
        let floats = tensor.filter(|_| plain).map_or(std::ptr::null(), |tensor| tensor.storage::<f32>().as_ptr());
        let direct = plain && in_order && long_runs;
        Self { tensor, floats: Shared(floats.cast_mut()), wide: input.wide, elements, direct, places }
    }

    /// A tile of the input, in place.
    pub(super) fn in_place(&self, row: usize, column: usize, columns: usize) -> Buffer {
        let column = if self.wide && columns > 1 { column as isize } else { 0 };
        // The row and the column are in the tensor, or in the block that was just written. Nothing writes it
        // meanwhile.
        let at = self.floats.0.wrapping_offset(self.places.row(row) + column);
        Buffer { at, step: self.places.step().unsigned_abs() }
    }

    /// Prefetches rows of the input, unless they are the same for all tiles, or not contiguous.
    pub(super) fn prefetch(&self, rows: Range<usize>, columns: usize) {
        let Some(tensor) = self.tensor.filter(|_| self.wide && self.places.inner == 1 && !rows.is_empty()) else {
            return;
        };
        let count = self.places.run().map_or(rows.len(), |run| rows.len().min(run - rows.start % run));
        let (count, step, length) = match self.places.step() {
            0 => return,
            step if step == columns.cast_signed() => (1, 0, count * columns),
            // Prefetching many short rows takes longer than it saves.
            _ if columns < SHORT => return,
            step => (count, step, columns),
        };
        let start = self.places.row(rows.start);
        for start in (0..count).map(|row| start + row.cast_signed() * step) {
            match self.elements {
                Elements::F32 => prefetch(self.floats.0.wrapping_offset(start), length),
                Elements::Mask => prefetch(tensor.bytes().as_ptr().wrapping_offset(start), length),
                Elements::Half(half) => prefetch(half.elements(tensor).as_ptr().wrapping_offset(start), length),
            }
        }
    }

    /// Copies a tile of the input.
    ///
    /// # Safety
    /// The buffer has room for the tile and was written before, and nothing else refers to it now.
    pub(super) unsafe fn copy(&self, to: Buffer, row: usize, rows: usize, column: usize, columns: usize) {
        // An input that is written block by block is contiguous, so it is read in place.
        let Some(tensor) = self.tensor else { return };
        let (width, inner) = if self.wide { (columns, self.places.inner) } else { (1, 0) };
        let column = if self.wide { column as isize * inner } else { 0 };
        for line in 0..rows {
            let start = self.places.row(row + line) + column;
            // SAFETY: guaranteed by the caller.
            let to = unsafe { std::slice::from_raw_parts_mut(to.at.add(line * to.step), width) };
            match self.elements {
                Elements::Mask if inner == 1 => truths(&tensor.bytes()[start.unsigned_abs()..], to),
                Elements::Mask => strided(to, tensor.bytes(), start, inner, truth),
                Elements::F32 => strided(to, tensor.storage::<f32>(), start, inner, |value| value),
                Elements::Half(half) if inner == 1 => half.widen(&half.elements(tensor)[start.unsigned_abs()..], to),
                Elements::Half(half) => strided(to, half.elements(tensor), start, inner, |bits| half.number(bits)),
            }
        }
    }
}

/// 1 for a byte of a mask that is true, otherwise 0.
#[inline(always)]
fn truth(byte: u8) -> f32 {
    f32::from(u8::from(byte != 0))
}

/// Copies contiguous bytes of a mask, as many as both sides have.
fn truths(from: &[u8], to: &mut [f32]) {
    vectorized!(|_FMA, from: &[u8], to: &mut [f32]| {
        to.iter_mut().zip(from).for_each(|(to, byte)| *to = truth(*byte));
    });
}

/// Copies strided elements.
fn strided<T: Copy>(to: &mut [f32], from: &[T], start: isize, stride: isize, read: impl Fn(T) -> f32) {
    let begin = start.unsigned_abs();
    match stride {
        1 => to.iter_mut().zip(&from[begin..]).for_each(|(to, value)| *to = read(*value)),
        0 => to.fill(read(from[begin])),
        _ => {
            let places = (0..to.len()).map(|place| (start + place as isize * stride).unsigned_abs());
            to.iter_mut().zip(places).for_each(|(to, place)| *to = read(from[place]));
        }
    }
}
