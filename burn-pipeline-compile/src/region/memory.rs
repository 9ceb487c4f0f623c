//! Storage of a region's outputs: each has one block, which all its tensors share.

use super::{Kind, Output, Region};
use crate::storage::Fresh;
use crate::tile::Argument;

impl Region {
    /// Storage to be written, or zeros to be added to.
    pub(super) fn storage(&self, output: &Output, pieces: usize) -> Fresh {
        let bytes = self.bytes(output, pieces);
        match output.kind {
            Kind::Sum { .. } => Fresh::zeros(bytes / size_of::<f32>()),
            _ => Fresh::bytes(bytes),
        }
    }

    /// Bytes of an output while this many pieces run; one piece has what is left after them.
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

    /// Bytes of each output, after a run.
    pub(crate) fn given_bytes(&self) -> impl Iterator<Item = (&Output, usize)> {
        self.outputs.iter().map(|output| (output, self.bytes(output, 1)))
    }

    /// The most bytes that a run makes at once; `blocks` if it runs behind that many products, of which one is there at a time.
    pub(crate) fn peak_bytes(&self, blocks: Option<usize>) -> usize {
        let pieces = if blocks.is_some() { 1 } else { self.pieces() };
        let running = |output| self.bytes(output, pieces);
        let mut now: usize = self.outputs.iter().map(running).sum();
        let mut peak = now + blocks.map_or(0, |blocks| self.rows / blocks * self.columns * size_of::<f32>());
        // Pieces of one sum after the other are added up, into storage of its own.
        for (output, after) in self.given_bytes().filter(|(output, after)| running(output) != *after) {
            peak = peak.max(now + after);
            now = now + after - running(output);
        }
        peak
    }
}
