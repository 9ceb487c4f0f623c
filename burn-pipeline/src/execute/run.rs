//! What a run is told: which plan over which part of which batch, and how it is carried out.

use super::Seeding;
use crate::plan::{CheckedPlan, StageId};
use crate::stage::Microbatches;
use std::time::{Duration, Instant};

/// How runs are carried out.
#[derive(Clone, Copy, Debug)]
pub struct RunOptions {
    /// The longest that any wait may take.
    pub timeout: Duration,
    /// Wait for the device after every compute task, so that events show what it took there.
    pub synchronize: bool,
    /// Run `W`s of one stage that stand side by side at once, where that is faster.
    pub merge_weights: bool,
    /// How fused actions are run.
    pub fused: FusedActions,
}

/// How an action that fuses a forward with a backward is run.
///
/// The contract of interleaving (`overlapped_forward_backward` elsewhere): both parts' inputs are awaited first; then
/// their operations are handed to the device alternately, from one thread, so that both end together; results are
/// those of running one after the other, bit for bit. A device that computes asynchronously can then overlap what
/// either part waits for (communication inside a layer, small kernels) with the other. Stages that were not captured
/// cannot be taken apart: they run one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FusedActions {
    /// Interleaved on devices that compute asynchronously (all but Flex), else in sequence.
    #[default]
    Auto,
    /// One after the other, in the plan's order.
    Sequence,
    /// Interleaved wherever both stages were captured.
    Interleave,
}

/// One run: which plan over which batch, by which clock.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// The plan.
    pub plan: &'a CheckedPlan,
    /// The batch.
    pub batch: &'a Microbatches,
    /// What the loss means, and how backwards are seeded.
    pub seeding: Seeding,
    /// Train, or evaluate: no autodiff, outputs are kept.
    pub train: bool,
    /// When the step began, the same for all ranks.
    pub began: Instant,
    /// Which part of the batch the plan is for.
    pub share: ReplicaShare,
}

/// The part of a batch that a data-parallel replica runs: all of it, where there is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaShare {
    /// The place of the plan's first microbatch in the batch.
    pub first: usize,
    /// Is there nothing to run here? The rank then only tells and hears what all ranks do.
    pub empty: bool,
    /// Do all replicas run the same plan? Otherwise they meet before and after it alone.
    pub same_plan: bool,
    /// Are gradients reduced over the replicas where the plan says so? Otherwise that is left for later.
    pub reduce: bool,
    /// Are those of sharded parameters? They are reduced with every batch.
    pub reduce_shards: bool,
}

impl Run<'_> {
    /// The place of a stage's microbatch in the whole batch.
    pub(super) fn index(&self, stage: StageId, microbatch: usize) -> usize {
        self.share.first + self.plan.plan().index_in_batch(stage, microbatch)
    }
}
