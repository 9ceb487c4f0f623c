//! The seeds of backwards, by the loss contract.

use crate::stage::{Microbatches, Reduction};

/// How a microbatch's backward is seeded, so that the sum over microbatches is the batch's gradient up to one
/// factor, which is applied at the end. See [`Reduction`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Seeding {
    /// The kind of the user's loss.
    pub reduction: Reduction,
    /// Samples in the microbatch whose backward is seeded with 1.
    pub reference_samples: usize,
    /// The loss scale.
    pub factor: f64,
}

impl Seeding {
    /// The seed of the loss of the microbatch at `index` in the batch.
    pub(crate) fn seed(&self, batch: &Microbatches, index: usize) -> f64 {
        let seed = match self.reduction {
            // Seeds are relative to one microbatch, not to the batch: the size of the whole batch is unknown while
            // batches accumulate, and equal microbatches get exactly 1.
            Reduction::Mean => batch.size(index) as f64 / self.reference_samples as f64,
            Reduction::Sum | Reduction::Weighted => 1.0,
        };
        seed * self.factor
    }
}
