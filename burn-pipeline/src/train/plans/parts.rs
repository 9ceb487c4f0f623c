//! The part of a batch that each data-parallel replica runs, and the plan that runs it.

use crate::execute::ReplicaShare;
use burn_pipeline_plan::plan::CheckedPlan;
use std::sync::Arc;

/// The parts of a batch, one per replica.
#[derive(Clone, Debug)]
pub(crate) struct Parts(pub(super) Vec<(ReplicaShare, Arc<CheckedPlan>)>);

impl Parts {
    /// The part and the plan of a replica.
    pub(crate) fn of(&self, replica: usize) -> (ReplicaShare, &CheckedPlan) {
        let (share, plan) = &self.0[replica];
        (*share, plan)
    }

    /// The number of replicas.
    pub(crate) fn replicas(&self) -> usize {
        self.0.len()
    }

    /// Returns true if all replicas have the same number of microbatches.
    pub(crate) fn are_even(&self) -> bool {
        self.0.iter().all(|(share, _)| share.same_plan)
    }

    /// The plan's name, for messages.
    pub(crate) fn name(&self) -> &str {
        self.0[0].1.plan().name()
    }

    pub(crate) fn has_backward(&self) -> bool {
        self.0[0].1.plan().has_backward()
    }
}
