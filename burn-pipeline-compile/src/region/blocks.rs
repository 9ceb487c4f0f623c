//! Runs a region right after each matrix of a batch of matmuls, so that attention's scores are never written whole.
//!
//! Guarantees: the results equal those of [`Region::run`] on the whole matmul.
//!
//! FlashAttention (Dao et al., arXiv:2205.14135) also keeps scores in fast memory. Here each matrix is computed
//! whole, and tensors that the backward reads are written.

use super::run::Target;
use super::source::Source;
use super::{Input, Kind, Region};
use crate::storage::{Fresh, Shared};
use burn::backend::flex::FlexTensor;

impl Region {
    /// Computes the outputs while one input is being made: `make` writes a block of its rows, and the region runs
    /// over them while they are in the cache. All blocks have the same number of rows; see [`Region::takes_blocks`].
    ///
    /// # Safety
    /// The region takes blocks of the input at index `made`, and `make` writes all of one. The other inputs have the
    /// shapes and types of the region's.
    pub(crate) unsafe fn run_blocks(
        &self,
        made: usize,
        inputs: &[FlexTensor],
        make: impl Fn(usize, *mut f32) + Sync,
    ) -> Vec<FlexTensor> {
        let blocks = self.blocks_of(made);
        let rows = self.rows / blocks;
        let mut tensors: Vec<Option<&FlexTensor>> = inputs.iter().map(Some).collect();
        tensors.insert(made, None);
        let run = |block: usize, sources: &[Source<'_>], targets: &[Target<'_>]| {
            let mut values = Fresh::floats(rows * self.columns);
            make(block, values.as_floats());
            let (first, mut sources) = (block * rows, sources.to_vec());
            sources[made].floats = Shared(values.as_floats().wrapping_sub(first * self.columns));
            // SAFETY: sources are the inputs and this block, targets the storage of the outputs; each block has its
            // own rows there.
            unsafe { self.piece(0, first..first + rows, &sources, targets) };
        };
        // SAFETY: blocks write all rows.
        unsafe { self.in_pieces(blocks, tensors.into_iter(), run) }
    }

    /// The number of matrices of this input.
    pub(crate) fn blocks_of(&self, made: usize) -> usize {
        let shape = &self.inputs[made].tensor.shape;
        shape[..shape.num_dims() - 2].iter().product()
    }

    /// Returns true if it can run matrix by matrix of this input, whose rows are several matrices one after the
    /// other.
    pub(crate) fn takes_blocks(&self, made: usize) -> bool {
        let Input { tensor, over, wide } = &self.inputs[made];
        let (columns, rows) = tensor.shape.split_last().unwrap_or((&1, &[]));
        let several = rows.split_last().is_some_and(|(_, batch)| batch.iter().product::<usize>() > 1);
        let sums = self.outputs.iter().any(|output| matches!(output.kind, Kind::Sum { .. }));
        several && *wide && self.columns > 1 && *columns == self.columns && rows == &over[..] && !sums
    }
}
