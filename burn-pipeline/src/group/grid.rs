//! Which rank of a job is which pipeline rank of which replica, and which member of its stages' group.

/// A rank's position among pipeline ranks, data-parallel replicas and the members of a group that holds each stage together.
///
/// Rank `(p * replicas + r) * members + m` is member `m` of pipeline rank `p` in replica `r`: Megatron-Core's order
/// `tp-cp-ep-dp-pp`. So members, which exchange the most bytes, have adjacent ranks.
///
/// With two replicas of a pipeline of three ranks and groups of one, rank 3 of the job is pipeline rank 1 of replica 1. The ranks of
/// its pipeline are 1, 3 and 5, and the ranks that hold the same stages are 2 and 3.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Grid {
    rank: usize,
    replicas: usize,
    members: usize,
}

impl Grid {
    /// The position of a rank of the job, with this many replicas, and members in a group (at least one of each).
    pub(crate) fn new(rank: usize, replicas: usize, members: usize) -> Self {
        Self { rank, replicas: replicas.max(1), members: members.max(1) }
    }

    /// The rank in the job.
    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    /// The number of replicas.
    pub(crate) fn replicas(&self) -> usize {
        self.replicas
    }

    /// The rank in its pipeline, as plans count.
    pub(crate) fn pipeline_rank(&self) -> usize {
        self.pipeline_rank_of(self.rank)
    }

    /// The replica of this rank.
    pub(crate) fn replica(&self) -> usize {
        self.replica_of(self.rank)
    }

    /// The replica of any rank of the job.
    pub(crate) fn replica_of(&self, rank: usize) -> usize {
        rank / self.members % self.replicas
    }

    /// This rank's place in the group that holds its stages.
    pub(crate) fn member(&self) -> usize {
        self.rank % self.members
    }

    /// The ranks of the job that hold this rank's stages together with it, in order.
    pub(crate) fn member_ranks(&self) -> std::ops::Range<usize> {
        let first = self.rank - self.member();
        first..first + self.members
    }

    /// The pipeline rank of any rank of the job.
    pub(crate) fn pipeline_rank_of(&self, rank: usize) -> usize {
        rank / self.members / self.replicas
    }

    /// The rank in the job of a pipeline rank: the same member in the same replica.
    pub(crate) fn rank_of(&self, pipeline_rank: usize) -> usize {
        self.rank_in(pipeline_rank, self.replica())
    }

    /// The rank in the job of a pipeline rank of some replica: the same member.
    pub(crate) fn rank_in(&self, pipeline_rank: usize, replica: usize) -> usize {
        (pipeline_rank * self.replicas + replica) * self.members + self.member()
    }

    /// The ranks of the job that hold copies of what this one holds, this one among them, in the order of replicas.
    pub(crate) fn replica_ranks(&self) -> impl Iterator<Item = usize> + use<> {
        let grid = *self;
        (0..self.replicas).map(move |replica| grid.rank_in(grid.pipeline_rank(), replica))
    }

    /// The share of each replica in a batch of `microbatches`: the index of its first microbatch and their number.
    pub(crate) fn shares(microbatches: usize, replicas: usize) -> Vec<(usize, usize)> {
        let (each, more) = (microbatches / replicas, microbatches % replicas);
        (0..replicas).map(|r| (r * each + r.min(more), each + usize::from(r < more))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Grid;
    use proptest::{prop_assert, prop_assert_eq, proptest};
    use std::collections::BTreeSet;

    #[test]
    fn ranks_are_numbered_replica_by_replica_within_a_pipeline_rank() {
        let grid = Grid::new(3, 2, 1);
        assert_eq!((grid.pipeline_rank(), grid.replica()), (1, 1));
        assert_eq!((0..3).map(|rank| grid.rank_of(rank)).collect::<Vec<_>>(), [1, 3, 5]);
        assert_eq!(grid.replica_ranks().collect::<Vec<_>>(), [2, 3]);
    }

    #[test]
    fn the_members_of_a_group_are_neighbours() {
        // Megatron-Core's example of 16 ranks, `tp2-dp2-pp4` as its `RankGenerator` orders them.
        let grid = Grid::new(6, 2, 2);
        assert_eq!((grid.pipeline_rank(), grid.replica(), grid.member()), (1, 1, 0));
        assert_eq!(grid.member_ranks(), 6..8);
        assert_eq!(grid.replica_ranks().collect::<Vec<_>>(), [4, 6]);
        assert_eq!((0..4).map(|rank| grid.rank_of(rank)).collect::<Vec<_>>(), [2, 6, 10, 14]);
    }

    proptest! {
        #[test]
        fn every_rank_has_one_place(pipeline in 1usize..6, replicas in 1usize..6, members in 1usize..5) {
            let places = (0..pipeline * replicas * members).map(|rank| Grid::new(rank, replicas, members));
            let mut seen = BTreeSet::new();
            for grid in places {
                prop_assert!(seen.insert((grid.pipeline_rank(), grid.replica(), grid.member())));
                prop_assert!(grid.pipeline_rank() < pipeline && grid.replica() < replicas && grid.member() < members);
                prop_assert_eq!(grid.rank_of(grid.pipeline_rank()), grid.rank());
                prop_assert_eq!(grid.member_ranks().nth(grid.member()), Some(grid.rank()));
                prop_assert_eq!(grid.replica_ranks().nth(grid.replica()), Some(grid.rank()));
                for rank in grid.member_ranks() {
                    let other = Grid::new(rank, replicas, members);
                    prop_assert_eq!((other.pipeline_rank(), other.replica()), (grid.pipeline_rank(), grid.replica()));
                }
                for replica in 0..replicas {
                    let there = Grid::new(grid.rank_in(pipeline - 1, replica), replicas, members);
                    let place = (there.pipeline_rank(), there.replica(), there.member());
                    prop_assert_eq!(place, (pipeline - 1, replica, grid.member()));
                }
            }
        }

        #[test]
        fn shares_are_the_whole_batch_and_differ_by_at_most_one(microbatches in 0usize..40, replicas in 1usize..9) {
            let shares = Grid::shares(microbatches, replicas);
            let mut next = 0;
            for &(first, count) in &shares {
                prop_assert_eq!(first, next);
                next += count;
            }
            prop_assert_eq!(next, microbatches);
            let counts = || shares.iter().map(|(_, count)| *count);
            prop_assert!(counts().max().unwrap() - counts().min().unwrap() <= 1);
        }
    }
}
