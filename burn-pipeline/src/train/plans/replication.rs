//! How many ranks run one pipeline rank's row, and whether the groups that hold stages can exchange what crosses between them.

use crate::group::GroupSizes;
use crate::plan::{Placement, Plan, SkipEdge, StageId};
use crate::train::error::BuildError;

/// How many ranks run one pipeline rank's row: data-parallel replicas, and the members of the group that holds its stages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Replication {
    pub(crate) replicas: usize,
    pub(crate) members: GroupSizes,
    /// The most stages whose parameters a rank may have gathered, where they are sharded.
    pub(crate) gathered: Option<usize>,
}

impl Replication {
    /// The plan with transfers, and with `UNSHARD` and `RESHARD` where parameters are sharded.
    pub(super) fn lower(&self, plan: &Plan) -> Result<Plan, BuildError> {
        match self.gathered {
            None => Ok(plan.with_transfers()?),
            Some(most) => Ok(plan.with_unshard(most)?.with_transfers()?),
        }
    }

    /// Ranks of all replicas and groups of so many pipeline ranks.
    pub(super) fn ranks(&self, pipeline_ranks: usize) -> usize {
        self.members.before(pipeline_ranks) * self.replicas
    }

    /// Refuses sizes that are not one for all pipeline ranks or one for each, and neighbours (over skip edges, too) of which neither
    /// size divides the other, and copies of a stage that groups of different sizes hold.
    pub(super) fn fits(&self, placement: &Placement, skips: &[SkipEdge]) -> Result<(), BuildError> {
        let (sizes, ranks) = (self.members.given().len(), placement.ranks());
        if sizes != 1 && sizes != ranks {
            return Err(BuildError::GroupSizes { sizes, ranks });
        }
        let of = |stage: StageId| self.members.of(placement.rank_of(stage));
        for from in placement.all_stages() {
            let next = placement.next(from).into_iter();
            let past = skips.iter().filter(|edge| edge.from == from.index());
            for to in next.chain(past.map(|edge| StageId::in_replica(from.replica(), edge.to))) {
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
