//! How many ranks run one pipeline rank's row, and whether tensor-parallel groups can exchange values between stages.

use crate::ranks::GroupSizes;
use crate::train::error::BuildError;
use burn_pipeline_plan::plan::{Placement, Plan, SkipEdge, StageId};

/// How many ranks run one pipeline rank's row: data-parallel replicas, and members of its tensor-parallel group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Replication {
    pub(crate) replicas: usize,
    pub(crate) members: GroupSizes,
    /// With sharding, the maximum number of stages whose parameters a rank has gathered at once.
    pub(crate) gathered: Option<usize>,
}

impl Replication {
    /// Adds transfers to the plan and, with sharding, `UNSHARD` and `RESHARD`.
    pub(super) fn lower(&self, plan: &Plan) -> Result<Plan, BuildError> {
        match self.gathered {
            None => Ok(plan.with_transfers()?),
            Some(most) => Ok(plan.with_unshard(most)?.with_transfers()?),
        }
    }

    /// The number of ranks of all replicas and groups, for this number of pipeline ranks.
    pub(super) fn ranks(&self, pipeline_ranks: usize) -> usize {
        self.members.before(pipeline_ranks) * self.replicas
    }

    /// Checks the group sizes: one for all pipeline ranks or one for each; of two neighbours (also over skip edges) one
    /// size divides the other; and copies of a stage have groups of the same size.
    pub(super) fn fits(&self, placement: &Placement, skips: &[SkipEdge]) -> Result<(), BuildError> {
        let (sizes, ranks) = (self.members.given().len(), placement.ranks());
        if sizes != 1 && sizes != ranks {
            return Err(BuildError::GroupSizes { sizes, ranks });
        }
        let of = |stage: StageId| self.members.of(placement.rank_of(stage));
        for from in placement.all_stages() {
            let next = placement.next(from).into_iter();
            let past = skips.iter().filter(|edge| edge.from == from.index());
            for to in next.chain(past.map(|edge| StageId::in_route(from.route(), edge.to))) {
                let (senders, receivers) = (of(from), of(to));
                if !senders.is_multiple_of(receivers) && !receivers.is_multiple_of(senders) {
                    return Err(BuildError::GroupBoundary { from, to, senders, receivers });
                }
            }
            let first = StageId::new(from.index());
            if of(first) != of(from) {
                return Err(BuildError::GroupCopies { stage: from.index(), first: of(first), second: of(from) });
            }
        }
        Ok(())
    }
}
