//! The position of a rank of the job: its pipeline rank, its replica, and its member of a tensor-parallel group.
//!
//! This file alone states how ranks are numbered (see [`Grid`]), for groups of different sizes too.

use super::sizes::GroupSizes;
use std::ops::Range;

/// A rank's position among pipeline ranks, data-parallel replicas and the members of a tensor-parallel group.
///
/// Ranks are numbered pipeline rank by pipeline rank, then replica by replica, then member by member:
/// Megatron-Core's order `tp-cp-ep-dp-pp`. So members, which exchange the most bytes, have adjacent ranks. In
/// groups of one size, rank `(p * replicas + r) * members + m` is member `m` of pipeline rank `p` in replica `r`.
///
/// With two replicas of a pipeline of three ranks and groups of one, rank 3 of the job is pipeline rank 1 of
/// replica 1. The ranks of its pipeline are 1, 3 and 5, and the ranks with its stages are 2 and 3.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Grid {
    /// The rank in the job.
    rank: usize,
    replicas: usize,
    sizes: GroupSizes,
}

impl Grid {
    /// The position of a rank of the job, given the number of replicas (at least one) and the size of each pipeline
    /// rank's group.
    pub(crate) fn new(rank: usize, replicas: usize, sizes: GroupSizes) -> Self {
        Self { rank, replicas: replicas.max(1), sizes }
    }

    /// The number of replicas.
    pub(crate) fn replicas(&self) -> usize {
        self.replicas
    }

    /// The rank in its pipeline, as numbered in plans.
    pub(crate) fn pipeline_rank(&self) -> usize {
        self.pipeline_rank_of(self.rank)
    }

    /// The replica of this rank.
    pub(crate) fn replica(&self) -> usize {
        self.replica_of(self.rank)
    }

    /// The replica of any rank of the job.
    pub(crate) fn replica_of(&self, rank: usize) -> usize {
        self.in_pipeline_rank(rank) / self.size_of(self.pipeline_rank_of(rank))
    }

    /// This rank's index in its tensor-parallel group.
    pub(crate) fn member(&self) -> usize {
        self.in_pipeline_rank(self.rank) % self.size_of(self.pipeline_rank())
    }

    /// The ranks of this rank's tensor-parallel group, in order.
    pub(crate) fn member_ranks(&self) -> Range<usize> {
        self.group_of(self.rank)
    }

    /// The ranks of the tensor-parallel group of any rank.
    pub(crate) fn group_of(&self, rank: usize) -> Range<usize> {
        self.group(self.pipeline_rank_of(rank), self.replica_of(rank))
    }

    /// The pipeline rank of any rank of the job.
    pub(crate) fn pipeline_rank_of(&self, rank: usize) -> usize {
        self.sizes.holder(rank / self.replicas)
    }

    /// The size of the tensor-parallel group of a pipeline rank.
    pub(crate) fn size_of(&self, pipeline_rank: usize) -> usize {
        self.sizes.of(pipeline_rank)
    }

    /// The size of the largest tensor-parallel group of the job.
    pub(crate) fn largest_group(&self) -> usize {
        self.sizes.largest()
    }

    /// The ranks with which this rank exchanges values to or from a pipeline rank, in order: the rank with its own
    /// index in a group of the same size, several in a larger group, and one that several members share in a
    /// smaller group. Of two sizes, one divides the other.
    pub(crate) fn counterparts(&self, pipeline_rank: usize) -> Range<usize> {
        let (own, other) = (self.size_of(self.pipeline_rank()), self.size_of(pipeline_rank));
        let first = self.group(pipeline_rank, self.replica()).start;
        match other / own {
            0 => {
                let place = first + self.member() / (own / other);
                place..place + 1
            }
            each => first + self.member() * each..first + (self.member() + 1) * each,
        }
    }

    /// The counterpart with which this rank measures the link to a pipeline rank. If several members share one
    /// counterpart, only the first measures.
    pub(crate) fn partner(&self, pipeline_rank: usize) -> Option<usize> {
        let (own, other) = (self.size_of(self.pipeline_rank()), self.size_of(pipeline_rank));
        let measures = self.member().is_multiple_of((own / other).max(1));
        measures.then(|| self.counterparts(pipeline_rank).start)
    }

    /// The rank in the job of a pipeline rank: the same member in the same replica, or the last member of a smaller
    /// group.
    pub(crate) fn rank_of(&self, pipeline_rank: usize) -> usize {
        self.rank_at(pipeline_rank, self.replica(), self.member())
    }

    /// The rank in the job of a member of a pipeline rank in some replica, or of the last member of a smaller
    /// group.
    pub(crate) fn rank_at(&self, pipeline_rank: usize, replica: usize, member: usize) -> usize {
        let group = self.group(pipeline_rank, replica);
        group.start + member.min(group.len() - 1)
    }

    /// The ranks of the job that hold copies of this rank's stages, including this one, in the order of replicas.
    pub(crate) fn replica_ranks(&self) -> impl Iterator<Item = usize> + use<> {
        let grid = self.clone();
        (0..self.replicas).map(move |replica| grid.rank_at(grid.pipeline_rank(), replica, grid.member()))
    }

    /// The ranks of a pipeline rank's tensor-parallel group in a replica.
    fn group(&self, pipeline_rank: usize, replica: usize) -> Range<usize> {
        let size = self.size_of(pipeline_rank);
        let first = self.sizes.before(pipeline_rank) * self.replicas + replica * size;
        first..first + size
    }

    /// The index of a rank of the job among those of its pipeline rank, over all replicas.
    fn in_pipeline_rank(&self, rank: usize) -> usize {
        rank - self.sizes.before(self.pipeline_rank_of(rank)) * self.replicas
    }

    /// The share of each replica in a batch of `microbatches`: the index and the number of its microbatches.
    pub(crate) fn shares(microbatches: usize, replicas: usize) -> Vec<(usize, usize)> {
        let (each, more) = (microbatches / replicas, microbatches % replicas);
        (0..replicas).map(|r| (r * each + r.min(more), each + usize::from(r < more))).collect()
    }
}

#[cfg(test)]
mod tests;
