//! Which data-parallel replica runs which part of a batch, by which plan.

use crate::execute::ReplicaShare;
use crate::group::Grid;
use crate::plan::CheckedPlan;
use crate::train::build_error::BuildError;
use std::sync::Arc;

/// The parts of a batch, one a replica.
#[derive(Clone, Debug)]
pub(crate) struct Shares(Vec<(ReplicaShare, Arc<CheckedPlan>)>);

impl Shares {
    /// The parts of a batch of this many microbatches (at least one), with the plan for each part's number.
    pub(crate) fn new(
        microbatches: usize,
        replicas: usize,
        mut plan: impl FnMut(usize) -> Result<Arc<CheckedPlan>, BuildError>,
    ) -> Result<Self, BuildError> {
        let shares = Grid::shares(microbatches, replicas);
        // Only replicas that run the same plan can meet inside a row.
        let same_plan = shares.iter().all(|(_, count)| *count == shares[0].1);
        let part = |(first, count): (usize, usize)| {
            // Who has nothing to run is not asked to run the plan, whichever it is.
            let plan = plan(if count == 0 { 1 } else { count })?;
            Ok((ReplicaShare { first, empty: count == 0, same_plan, ..ReplicaShare::default() }, plan))
        };
        Ok(Self(shares.into_iter().map(part).collect::<Result<_, BuildError>>()?))
    }

    /// A replica's part, and its plan.
    pub(crate) fn of(&self, replica: usize) -> (ReplicaShare, &CheckedPlan) {
        let (part, plan) = &self.0[replica];
        (*part, plan)
    }

    /// The plan's name, for messages.
    pub(crate) fn name(&self) -> &str {
        self.0[0].1.plan().name()
    }

    pub(crate) fn has_backward(&self) -> bool {
        self.0[0].1.plan().has_backward()
    }
}
