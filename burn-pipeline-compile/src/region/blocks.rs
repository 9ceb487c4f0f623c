//! Runs a region right after each matrix of a batch of matmuls, so that attention's scores are never written whole.
//!
//! Guarantees: the results equal those of [`Region::run`] on the whole matmul.
//!
//! FlashAttention (Dao et al., arXiv:2205.14135) also keeps scores in fast memory. Here each matrix is computed
//! whole, and tensors that the backward reads are written.

use super::run::{PARALLEL, Target, given};
use super::source::{Shared, Source};
use super::{Input, Kind, Region};
use crate::storage::Fresh;
use burn::backend::flex::FlexTensor;
use burn::backend::ir::TensorId;
use rayon::prelude::*;

impl Region {
    /// Computes the outputs while one input is being made: `make` writes a block of its rows, and the region runs
    /// over them while they are in the cache. All blocks have the same number of rows; see [`Region::takes_blocks`].
    ///
    /// # Safety
    /// The region takes blocks of the input at index `made`, of which there are `blocks`, and `make` writes all of
    /// one. The other inputs have the shapes and types of the region's.
    pub(crate) unsafe fn run_blocks(
        &self,
        (made, blocks): (usize, usize),
        inputs: &[FlexTensor],
        make: impl Fn(usize, *mut f32) + Sync,
    ) -> Vec<(TensorId, FlexTensor)> {
        let (tile, rows) = (self.tile(), self.rows / blocks);
        let mut tensors: Vec<Option<&FlexTensor>> = inputs.iter().map(Some).collect();
        tensors.insert(made, None);
        let inputs = self.inputs.iter().zip(tensors);
        let sources: Vec<Source<'_>> = inputs.map(|(input, tensor)| Source::new(self, input, tensor, tile.0)).collect();
        let mut fresh: Vec<Fresh> = self.outputs.iter().map(|output| self.storage(output, 1)).collect();
        let targets: Vec<Target> =
            self.outputs.iter().zip(&mut fresh).map(|(output, fresh)| self.target(output, fresh)).collect();
        let run = |block: usize| {
            let mut values = Fresh::floats(rows * self.columns);
            make(block, values.as_floats());
            let (first, mut sources) = (block * rows, sources.clone());
            sources[made].floats = Shared(values.as_floats().wrapping_sub(first * self.columns));
            // SAFETY: sources are the inputs and this block, targets the storage of the outputs; each block has its
            // own rows there.
            unsafe { self.piece(0, first..first + rows, tile, &sources, &targets) };
        };
        match self.rows * self.columns >= PARALLEL && rayon::current_num_threads() > 1 {
            true => (0..blocks).into_par_iter().for_each(run),
            false => (0..blocks).for_each(run),
        }
        // SAFETY: blocks have written all rows.
        let given = |(output, fresh)| unsafe { given(output, fresh, 1) };
        self.outputs.iter().zip(fresh).flat_map(given).collect()
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
