//! Storage of a region's outputs. Each output has one block, which all its tensors share.

use super::{Kind, Output, Region};
use crate::storage::Fresh;
use crate::tile::Argument;

impl Region {
    /// Storage to be written, or zeros to add to.
    pub(super) fn storage(&self, output: &Output, pieces: usize) -> Fresh {
        let bytes = self.bytes(output, pieces);
        match output.kind {
            Kind::Sum { .. } => Fresh::bytes(bytes).zeroed(),
            _ => Fresh::bytes(bytes),
        }
    }

    /// The number of columns of an output: those of the region, or 1 for a value per row.
    pub(super) fn columns_of(&self, output: &Output) -> usize {
        let wide = match output.kind {
            Kind::Values { wide } => wide,
            Kind::Mask { from } | Kind::Half { from, .. } => matches!(from, Argument::Wide(_)),
            Kind::Sum { columns, .. } => return columns,
        };
        if wide { self.columns } else { 1 }
    }

    /// Bytes of an output while this many pieces run.
    fn bytes(&self, output: &Output, pieces: usize) -> usize {
        let elements = self.rows * self.columns_of(output);
        match output.kind {
            Kind::Values { .. } => elements * size_of::<f32>(),
            Kind::Mask { .. } => elements,
            Kind::Half { .. } => elements * size_of::<u16>(),
            Kind::Sum { .. } => output.sum_length() * if output.sums_one_row() { pieces } else { 1 } * size_of::<f32>(),
        }
    }

    /// The bytes of each output after a run.
    pub(crate) fn given_bytes(&self) -> impl Iterator<Item = (&Output, usize)> {
        let after = |output: &Output| match output.sums_in_half() {
            Some(_) => output.sum_length() * size_of::<u16>(),
            None => self.bytes(output, 1),
        };
        self.outputs.iter().map(move |output| (output, after(output)))
    }

    /// The most bytes that a run makes at once. `made` is the input that is a batch of matmuls, if it runs after each;
    /// one matrix exists at a time.
    pub(crate) fn peak_bytes(&self, made: Option<usize>) -> usize {
        let pieces = if made.is_some() { 1 } else { self.pieces() };
        let running = |output| self.bytes(output, pieces);
        let mut now: usize = self.outputs.iter().map(running).sum();
        let mut peak = now + made.map_or(0, |made| self.rows / self.blocks_of(made) * self.columns * size_of::<f32>());
        // The pieces of one sum after the other are added up, or rounded to half precision, into new storage.
        for (output, after) in self.given_bytes().filter(|(output, after)| running(output) != *after) {
            peak = peak.max(now + after);
            now = now + after - running(output);
        }
        peak
    }
}
