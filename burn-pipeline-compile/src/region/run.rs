//! Runs a region on tensors.
//!
//! 1. The rows are cut into at most 16 pieces, by their number alone. Threads divide the pieces, unless a sum has
//!    several rows. A sum of one row is computed for each piece.
//! 2. A piece runs tile by tile: inputs that cannot be read in place are copied, then the instructions run.
//! 3. The sums of pieces are added in order.

use super::source::Source;
use super::sums::extend_rows;
use super::{Kind, Output, Region};
use crate::half::Half;
use crate::processor::vectorized;
use crate::storage::{Fresh, Shared};
use crate::tile::{Argument, Buffer, Sum, Tile, run};
use burn::backend::flex::FlexTensor;
use rayon::prelude::*;
use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ops::Range;

/// The number of elements of a tile. Several tiles fit into the L1 cache.
const TILE: usize = 2048;
/// Longer rows are split, if they may be.
const LONG: usize = 4096;
/// The least rows of a piece.
const PIECE: usize = 64;
/// The most pieces.
const PIECES: usize = 16;
/// The number of elements from which several threads pay.
const PARALLEL: usize = 64 * 1024;

thread_local! {
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Where an output is written.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    kind: &'a Kind,
    at: Shared<u8>,
    columns: usize,
    /// The number of elements of each piece's sum; 0 if all pieces have one sum, or if the output is not a sum.
    length: usize,
}

impl Region {
    /// Computes the tensors of all outputs from the inputs, all in order.
    ///
    /// # Safety
    /// The inputs have the shapes and types of the region's.
    pub(crate) unsafe fn run(&self, inputs: &[FlexTensor]) -> Vec<FlexTensor> {
        let pieces = self.pieces();
        let length = self.rows.div_ceil(pieces);
        let run = |piece: usize, sources: &[Source<'_>], targets: &[Target<'_>]| {
            let rows = piece * length..((piece + 1) * length).min(self.rows);
            // SAFETY: sources are the inputs and targets the storage of the outputs; each piece has its own rows.
            unsafe { self.piece(piece, rows, sources, targets) };
        };
        // SAFETY: pieces write all rows.
        unsafe { self.in_pieces(pieces, inputs.iter().map(Some), run) }
    }

    /// Computes the outputs by a call of `run` for each of some pieces of the rows. An input without a tensor is
    /// written block by block.
    ///
    /// # Safety
    /// The inputs have the shapes and types of the region's, and `run` writes all rows of its piece.
    pub(super) unsafe fn in_pieces<'a>(
        &self,
        pieces: usize,
        inputs: impl Iterator<Item = Option<&'a FlexTensor>>,
        run: impl Fn(usize, &[Source<'_>], &[Target<'_>]) + Sync,
    ) -> Vec<FlexTensor> {
        let inputs = self.inputs.iter().zip(inputs);
        let sources: Vec<Source<'_>> = inputs.map(|(input, tensor)| Source::new(self, input, tensor)).collect();
        let mut fresh: Vec<Fresh> = self.outputs.iter().map(|output| self.storage(output, pieces)).collect();
        let targets: Vec<Target<'_>> =
            self.outputs.iter().zip(&mut fresh).map(|(output, fresh)| self.target(output, fresh)).collect();
        let run = |piece: usize| run(piece, &sources, &targets);
        let worth = pieces > 1 && self.rows * self.columns >= PARALLEL && rayon::current_num_threads() > 1;
        match worth && self.outputs.iter().all(Output::sums_one_row) {
            true => (0..pieces).into_par_iter().for_each(run),
            false => (0..pieces).for_each(run),
        }
        // SAFETY: pieces have written all rows.
        let given = |(output, fresh)| unsafe { given(output, fresh, pieces) };
        self.outputs.iter().zip(fresh).flat_map(given).collect()
    }

    /// Rows and columns of a tile.
    pub(super) fn tile(&self) -> (usize, usize) {
        let columns = if self.whole_rows || self.columns <= LONG { self.columns } else { TILE };
        ((TILE / columns).clamp(1, self.rows.max(1)), columns)
    }

    /// The number of pieces into which its rows are cut. It depends on the number of rows alone, so that sums of
    /// pieces are the same in every region.
    pub(super) fn pieces(&self) -> usize {
        (self.rows / PIECE).clamp(1, PIECES)
    }

    fn target<'a>(&self, output: &'a Output, fresh: &mut Fresh) -> Target<'a> {
        let length = if output.sums_one_row() { output.sum_length() } else { 0 };
        Target { kind: &output.kind, at: Shared(fresh.as_bytes()), columns: self.columns_of(output), length }
    }

    /// Runs over some rows, on this thread.
    ///
    /// # Safety
    /// Sources are the region's inputs, targets the storage of its outputs ([`storage`](Self::storage)). Both have
    /// these rows, and nothing else refers to the parts of the targets to which these rows are written.
    pub(super) unsafe fn piece(
        &self,
        piece: usize,
        rows: Range<usize>,
        sources: &[Source<'_>],
        targets: &[Target<'_>],
    ) {
        let (tile_rows, tile_columns) = self.tile();
        let copied = sources.iter().filter(|source| !source.direct).count();
        let wide = (self.wide_slots + copied) * tile_rows * tile_columns;
        let length = wide + (self.row_slots + copied) * tile_rows;
        SCRATCH.with_borrow_mut(|scratch| {
            if scratch.len() < length {
                scratch.resize(length, 0.0);
            }
            let mut tiles = Tiles { region: self, sources, targets, tile_rows, tile_columns, buffers: Vec::new() };
            tiles.place(&mut scratch[..length]);
            let mut sum_rows: Vec<Vec<usize>> = vec![Vec::new(); targets.len()];
            let mut row = rows.start;
            while row < rows.end {
                let count = tiles.rows_from(row, rows.end);
                for (output, sums) in self.outputs.iter().zip(&mut sum_rows) {
                    output.sum_rows(row..row + count, sums);
                }
                let mut column = 0;
                while column < self.columns {
                    let columns = tile_columns.min(self.columns - column);
                    // SAFETY: guaranteed by the caller; the scratch buffer does not move.
                    unsafe { tiles.run(piece, row, count, column, columns, &sum_rows) };
                    column += columns;
                }
                row += count;
            }
        });
    }
}

impl Output {
    /// The number of elements of a sum; 0 for other outputs.
    pub(super) fn sum_length(&self) -> usize {
        match &self.kind {
            Kind::Sum { columns, dims, .. } => {
                columns * dims.iter().filter(|(_, stays)| *stays).map(|(size, _)| size).product::<usize>()
            }
            _ => 0,
        }
    }

    /// The half-precision type of a sum.
    pub(super) fn sums_in_half(&self) -> Option<Half> {
        self.tensors.first().and_then(Half::of).filter(|_| matches!(self.kind, Kind::Sum { .. }))
    }

    /// Returns true if the output is not a sum, or a sum of one row. Then each piece has its own sum, and these are
    /// added up.
    pub(super) fn sums_one_row(&self) -> bool {
        match &self.kind {
            Kind::Sum { columns, .. } => self.sum_length() <= *columns,
            _ => true,
        }
    }

    /// The row of the sum that each row is added to.
    fn sum_rows(&self, rows: Range<usize>, to: &mut Vec<usize>) {
        to.clear();
        if let Kind::Sum { dims, .. } = &self.kind {
            extend_rows(dims, rows, to);
        }
    }
}

/// Stores truth values as bytes, as many as both sides have.
fn masked(from: &[f32], to: &mut [MaybeUninit<u8>]) {
    vectorized!(|_FMA, from: &[f32], to: &mut [MaybeUninit<u8>]| {
        to.iter_mut().zip(from).for_each(|(to, value)| _ = to.write(u8::from(*value != 0.0)));
    });
}

/// The tensors of an output. Adds the sums of pieces in order.
///
/// # Safety
/// All pieces have run over all their rows.
unsafe fn given(output: &Output, fresh: Fresh, pieces: usize) -> Vec<FlexTensor> {
    let summed = matches!(output.kind, Kind::Sum { .. });
    let pieces = if output.sums_one_row() { pieces } else { 1 };
    // SAFETY: sums were zeros, one for each piece if they are of one row.
    let fresh = if summed { unsafe { fresh.sum(output.sum_length(), pieces, output.sums_in_half()) } } else { fresh };
    // SAFETY: tiles have written values and masks of all rows; sums were zeros.
    unsafe { fresh.tensors(&output.tensors) }
}

/// The tiles of a piece, one after the other.
struct Tiles<'a> {
    region: &'a Region,
    sources: &'a [Source<'a>],
    targets: &'a [Target<'a>],
    tile_rows: usize,
    tile_columns: usize,
    buffers: Vec<Buffer>,
}

impl Tiles<'_> {
    /// Assigns the buffers that do not move: slots, and copies of inputs.
    fn place(&mut self, scratch: &mut [f32]) {
        let (mut left, size) = (scratch.len(), self.tile_rows * self.tile_columns);
        let mut at = scratch.as_mut_ptr();
        let mut next = |length: usize| {
            left = left.checked_sub(length).expect("the scratch has room for all slots and copies");
            let here = at;
            at = at.wrapping_add(length);
            here
        };
        let columns = self.tile_columns;
        for source in self.sources {
            let buffer = match (source.direct, source.wide) {
                (true, _) => Buffer { at: std::ptr::null_mut(), step: 0 },
                (false, true) => Buffer { at: next(size), step: columns },
                (false, false) => Buffer { at: next(self.tile_rows), step: 1 },
            };
            self.buffers.push(buffer);
        }
        self.targets.iter().for_each(|_| self.buffers.push(Buffer { at: std::ptr::null_mut(), step: 0 }));
        (0..self.region.wide_slots).for_each(|_| self.buffers.push(Buffer { at: next(size), step: columns }));
        (0..self.region.row_slots).for_each(|_| self.buffers.push(Buffer { at: next(self.tile_rows), step: 1 }));
    }

    /// The number of rows of the next tile, in which inputs that are read in place have one step.
    fn rows_from(&self, row: usize, end: usize) -> usize {
        let runs = self.sources.iter().filter(|source| source.direct).filter_map(|source| source.places.run());
        let within = runs.map(|run| run - row % run).min().unwrap_or(usize::MAX);
        self.tile_rows.min(end - row).min(within)
    }

    /// # Safety
    /// As for [`Region::piece`]; buffers have been assigned in scratch memory to which nothing else refers.
    unsafe fn run(
        &mut self,
        piece: usize,
        row: usize,
        rows: usize,
        column: usize,
        columns: usize,
        sum_rows: &[Vec<usize>],
    ) {
        if columns == self.region.columns {
            let next = row + rows..(row + 2 * rows).min(self.region.rows);
            self.sources.iter().for_each(|source| source.prefetch(next.clone(), columns));
        }
        for (place, source) in self.sources.iter().enumerate() {
            match source.direct {
                true => self.buffers[place] = source.in_place(row, column, self.region.columns),
                false => {
                    // The rows of a shorter tile are contiguous too.
                    self.buffers[place].step = if source.wide { columns } else { 1 };
                    // SAFETY: the copy's buffer has room for the largest tile, and the scratch memory holds numbers.
                    unsafe { source.copy(self.buffers[place], row, rows, column, columns) };
                }
            }
        }
        let first = self.sources.len();
        for (place, target) in self.targets.iter().enumerate() {
            if let Target { kind: Kind::Values { .. }, at, columns: all, .. } = *target {
                let offset = row * all + if all > 1 { column } else { 0 };
                // SAFETY: the output has a value for each element, or for each row.
                self.buffers[first + place] = Buffer { at: unsafe { at.0.cast::<f32>().add(offset) }, step: all };
            }
        }
        // If the last columns are fewer, slots are read with the steps with which they were written.
        let slots = first + self.targets.len();
        self.buffers[slots..slots + self.region.wide_slots].iter_mut().for_each(|buffer| buffer.step = columns);
        let sums = self.targets.iter().zip(sum_rows).filter_map(|(target, rows)| match *target {
            // A sum of row values is complete after the first columns of a row that is longer than a tile.
            Target { kind: &Kind::Sum { from, .. }, at, columns: all, length } if all > 1 || column == 0 => {
                let offset = piece * length + if all > 1 { column } else { 0 };
                // SAFETY: there is a sum for each piece, or pieces run one after the other.
                let to = unsafe { at.0.cast::<f32>().add(offset) };
                Some(Sum { from, columns: if all > 1 { columns } else { 1 }, step: all, to, rows })
            }
            _ => None,
        });
        let sums: Vec<Sum<'_>> = sums.collect();
        let tile = Tile { rows, columns, buffers: &self.buffers };
        // SAFETY: every buffer has room for the tile; instructions write slots and outputs, which do not overlap
        // anything else.
        unsafe { run(&self.region.code, tile, &sums) };
        let extent = (row..row + rows, column..column + columns);
        for target in self.targets {
            // SAFETY: the instructions have written the buffer, and the output has these rows.
            unsafe {
                match *target.kind {
                    Kind::Mask { from } => self.converted::<u8>(target, from, &extent, masked),
                    Kind::Half { from, half } => {
                        self.converted::<u16>(target, from, &extent, |from, to| half.narrow(from, to));
                    }
                    Kind::Values { .. } | Kind::Sum { .. } => {}
                }
            }
        }
    }

    /// Writes a tile of an output of another type, row by row.
    ///
    /// # Safety
    /// The buffer holds the tile, the output has an element for each of the tile's, and nothing else refers to these.
    unsafe fn converted<T>(
        &self,
        target: &Target<'_>,
        from: Argument,
        (rows, columns): &(Range<usize>, Range<usize>),
        convert: impl Fn(&[f32], &mut [MaybeUninit<T>]),
    ) {
        let (Argument::Wide(from) | Argument::Row(from)) = from else { return };
        let (buffer, all) = (self.buffers[from], target.columns);
        let (width, column) = if all > 1 { (columns.len(), columns.start) } else { (1, 0) };
        for (line, row) in rows.clone().enumerate() {
            // SAFETY: guaranteed by the caller.
            let (to, from) = unsafe {
                let to =
                    std::slice::from_raw_parts_mut(target.at.0.cast::<MaybeUninit<T>>().add(row * all + column), width);
                (to, std::slice::from_raw_parts(buffer.at.add(line * buffer.step), width))
            };
            convert(from, to);
        }
    }
}
