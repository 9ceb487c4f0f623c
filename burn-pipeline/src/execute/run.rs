//! The input of one run: a plan, a batch, the part of the batch that the plan covers, and the seeds of backwards.

use super::context::Purpose;
use crate::stage::{Microbatches, Reduction};
use burn_pipeline_plan::plan::CheckedPlan;
use std::time::Instant;

/// One run of a plan over a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run<'a> {
    pub plan: &'a CheckedPlan,
    pub batch: &'a Microbatches,
    /// How backwards are seeded.
    pub seeding: Seeding,
    /// Why the plan is run. An evaluation runs without autodiff and keeps outputs.
    pub purpose: Purpose,
    /// When the step began, the same on all ranks.
    pub began: Instant,
    /// The part of the batch that the plan covers.
    pub share: ReplicaShare,
}

/// The part of a batch that one data-parallel replica runs. The default is the whole batch of a pipeline without
/// replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReplicaShare {
    /// The index in the batch of the plan's first microbatch.
    pub first: usize,
    /// True if this replica has no microbatch. Its ranks then only take part in what all ranks exchange.
    pub empty: bool,
    /// True if all replicas run the same plan. Otherwise they exchange only before and after their rows.
    pub same_plan: bool,
    /// True if `REDUCE_GRAD` reduces gradients over the replicas in this run. Otherwise a later call reduces them.
    pub reduce: bool,
    /// The same for gradients of sharded parameters, which are reduced with every batch.
    pub reduce_shards: bool,
}

impl Run<'_> {
    /// Returns true if backwards are run.
    pub(super) fn trains(&self) -> bool {
        self.purpose != Purpose::Evaluation
    }
}

/// How a microbatch's backward is seeded, so that the sum over microbatches is the batch's gradient up to one
/// factor, which is applied at the end. See [`Reduction`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Seeding {
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
