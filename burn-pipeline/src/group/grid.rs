//! Which rank of a job is which rank of which replica.

/// A rank's place among pipeline ranks and data-parallel replicas.
///
/// ```
/// use burn_pipeline::group::Grid;
/// // Two replicas of a pipeline of three ranks: rank 3 is pipeline rank 1 of replica 1.
/// let grid = Grid::new(3, 2);
/// assert_eq!((grid.pipeline_rank(), grid.replica()), (1, 1));
/// // Its pipeline's ranks, and the ranks that hold the same stages.
/// assert_eq!((0..3).map(|place| grid.rank_of(place)).collect::<Vec<_>>(), [1, 3, 5]);
/// assert_eq!(grid.replica_ranks().collect::<Vec<_>>(), [2, 3]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grid {
    rank: usize,
    replicas: usize,
}

impl Grid {
    /// The place of a rank of the job, among this many replicas (at least one).
    pub fn new(rank: usize, replicas: usize) -> Self {
        Self { rank, replicas: replicas.max(1) }
    }

    /// The rank in the job.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many replicas there are.
    pub fn replicas(&self) -> usize {
        self.replicas
    }

    /// The rank in its pipeline, as plans count.
    pub fn pipeline_rank(&self) -> usize {
        self.pipeline_rank_of(self.rank)
    }

    /// Its replica.
    pub fn replica(&self) -> usize {
        self.rank % self.replicas
    }

    /// The rank in its pipeline of any rank of the job.
    pub fn pipeline_rank_of(&self, rank: usize) -> usize {
        rank / self.replicas
    }

    /// The rank in the job of a rank of the same pipeline.
    pub fn rank_of(&self, place: usize) -> usize {
        self.rank_in(place, self.replica())
    }

    /// The rank in the job of a rank of some replica.
    pub fn rank_in(&self, place: usize, replica: usize) -> usize {
        place * self.replicas + replica
    }

    /// The ranks of the job that hold the same stages, itself among them, in the order of replicas.
    pub fn replica_ranks(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, replicas) = (self.rank_in(self.pipeline_rank(), 0), self.replicas);
        first..first + replicas
    }

    /// How many of `microbatches` come before each replica's part, and how many are in it.
    pub fn shares(microbatches: usize, replicas: usize) -> Vec<(usize, usize)> {
        let (each, more) = (microbatches / replicas, microbatches % replicas);
        (0..replicas).map(|r| (r * each + r.min(more), each + usize::from(r < more))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Grid;
    use proptest::{prop_assert_eq, proptest};
    use std::collections::BTreeSet;

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
