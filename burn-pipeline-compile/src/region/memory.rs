//! Storage of a region's outputs. Each output has one block, which all its tensors share.

use super::{Kind, Output, Region};
use crate::storage::Fresh;
use crate::tile::Argument;

impl Region {
    /// Storage to be written, or zeros to add to.
    pub(super) fn storage(&self, output: &Output, pieces: usize) -> Fresh {
        let bytes = self.bytes(output, pieces);
        match output.kind {
            Kind::Sum { .. } => Fresh::zeros(bytes / size_of::<f32>()),
            _ => Fresh::bytes(bytes),
        }
    }

    /// Bytes of an output while this many pieces run; with one piece, the bytes after the run.
    fn bytes(&self, output: &Output, pieces: usize) -> usize {
        let elements = |wide| if wide { self.rows * self.columns } else { self.rows };
        let of = |from| elements(matches!(from, Argument::Wide(_)));
        match output.kind {
            Kind::Values { wide } => elements(wide) * size_of::<f32>(),
            Kind::Mask { from } => of(from),
            Kind::Rounded { from, .. } => of(from) * size_of::<u16>(),
            Kind::Sum { .. } => {
                let pieces = if output.sums_one_row() { pieces } else { 1 };
                output.sum_length() * pieces * size_of::<f32>()
            }
        }
    }

    /// The bytes of each output after a run.
    pub(crate) fn given_bytes(&self) -> impl Iterator<Item = (&Output, usize)> {
        self.outputs.iter().map(|output| (output, self.bytes(output, 1)))
    }

    /// The most bytes that a run makes at once. `blocks` is the number of matrices if it runs after a batch of
    /// matmuls; one of them exists at a time.
    pub(crate) fn peak_bytes(&self, blocks: Option<usize>) -> usize {
        let pieces = if blocks.is_some() { 1 } else { self.pieces() };
        let running = |output| self.bytes(output, pieces);
        let mut now: usize = self.outputs.iter().map(running).sum();
        let mut peak = now + blocks.map_or(0, |blocks| self.rows / blocks * self.columns * size_of::<f32>());
        // The pieces of one sum after the other are added up, into new storage.
        for (output, after) in self.given_bytes().filter(|(output, after)| running(output) != *after) {
            peak = peak.max(now + after);
            now = now + after - running(output);
        }
        peak
    }
}
