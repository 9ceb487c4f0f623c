//! The input of one run: a plan, a batch, and the part of the batch that the plan covers.

use super::context::Purpose;
use super::seeding::Seeding;
use crate::stage::Microbatches;
use burn_pipeline_plan::plan::{CheckedPlan, StageId};
use std::time::Instant;

/// One run of a plan over a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run<'a> {
    /// The plan.
    pub plan: &'a CheckedPlan,
    /// The batch.
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

    /// The index in the whole batch of a stage's microbatch; plans count within a route.
    pub(super) fn index(&self, stage: StageId, microbatch: usize) -> usize {
        self.share.first + self.plan.plan().index_in_batch(stage, microbatch)
    }
}
