//! Which rank of a job is which pipeline rank of which replica.

/// A rank's position among pipeline ranks and data-parallel replicas.
///
/// With two replicas of a pipeline of three ranks, rank 3 of the job is pipeline rank 1 of replica 1. The ranks of its pipeline
/// are 1, 3 and 5, and the ranks that hold the same stages are 2 and 3.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Grid {
    rank: usize,
    replicas: usize,
}

impl Grid {
    /// The position of a rank of the job, with this many replicas (at least one).
    pub(crate) fn new(rank: usize, replicas: usize) -> Self {
        Self { rank, replicas: replicas.max(1) }
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
        self.rank % self.replicas
    }

    /// The pipeline rank of any rank of the job.
    pub(crate) fn pipeline_rank_of(&self, rank: usize) -> usize {
        rank / self.replicas
    }

    /// The rank in the job of a pipeline rank of the same replica.
    pub(crate) fn rank_of(&self, pipeline_rank: usize) -> usize {
        self.rank_in(pipeline_rank, self.replica())
    }

    /// The rank in the job of a pipeline rank of some replica.
    pub(crate) fn rank_in(&self, pipeline_rank: usize, replica: usize) -> usize {
        pipeline_rank * self.replicas + replica
    }

    /// The ranks of the job that hold the same stages, this one among them, in the order of replicas.
    pub(crate) fn replica_ranks(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, replicas) = (self.rank_in(self.pipeline_rank(), 0), self.replicas);
        first..first + replicas
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
    use proptest::{prop_assert_eq, proptest};
    use std::collections::BTreeSet;

    #[test]
    fn ranks_are_numbered_replica_by_replica_within_a_pipeline_rank() {
        let grid = Grid::new(3, 2);
        assert_eq!((grid.pipeline_rank(), grid.replica()), (1, 1));
        assert_eq!((0..3).map(|rank| grid.rank_of(rank)).collect::<Vec<_>>(), [1, 3, 5]);
        assert_eq!(grid.replica_ranks().collect::<Vec<_>>(), [2, 3]);
    }

    proptest! {
        #[test]
        fn every_rank_has_one_place(pipeline in 1usize..6, replicas in 1usize..6) {
            let places = (0..pipeline * replicas).map(|rank| Grid::new(rank, replicas));
            let places: BTreeSet<_> = places.map(|grid| (grid.pipeline_rank(), grid.replica())).collect();
            prop_assert_eq!(places.len(), pipeline * replicas);
            for &(place, replica) in &places {
                let grid = Grid::new(0, replicas);
                let there = Grid::new(grid.rank_in(place, replica), replicas);
                prop_assert_eq!((there.pipeline_rank(), there.replica()), (place, replica));
                prop_assert_eq!(there.rank_of(place), there.rank());
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
            proptest::prop_assert!(counts().max().unwrap() - counts().min().unwrap() <= 1);
        }
    }
}
