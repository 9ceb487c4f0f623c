//! The sizes of tensor-parallel groups.

use std::sync::Arc;

/// The size of each stage's tensor-parallel group: one number for all pipeline ranks, or one for each of them in
/// order.
///
/// ```
/// use burn_pipeline::train::GroupSizes;
/// assert_eq!(GroupSizes::from(2), GroupSizes::from([2]));
/// assert_ne!(GroupSizes::from([1, 2]), GroupSizes::from([2, 1]));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupSizes(Arc<[usize]>);

impl From<usize> for GroupSizes {
    fn from(size: usize) -> Self {
        Self::from([size])
    }
}

impl From<Vec<usize>> for GroupSizes {
    fn from(sizes: Vec<usize>) -> Self {
        Self(sizes.into())
    }
}

impl<const N: usize> From<[usize; N]> for GroupSizes {
    fn from(sizes: [usize; N]) -> Self {
        Self(Arc::from(sizes))
    }
}

impl GroupSizes {
    /// The sizes as given: a single one is for all pipeline ranks.
    pub(crate) fn given(&self) -> &[usize] {
        &self.0
    }

    /// The size of the largest group; 0 if no size was given.
    pub(crate) fn largest(&self) -> usize {
        self.0.iter().copied().max().unwrap_or_default()
    }

    /// The size of a pipeline rank's group, at least one.
    pub(crate) fn of(&self, pipeline_rank: usize) -> usize {
        let size = if let [one] = *self.0 { Some(one) } else { self.0.get(pipeline_rank).copied() };
        size.unwrap_or_default().max(1)
    }

    /// The number of one replica's ranks in the groups of all earlier pipeline ranks.
    pub(crate) fn before(&self, pipeline_rank: usize) -> usize {
        (0..pipeline_rank).map(|earlier| self.of(earlier)).sum()
    }

    /// The pipeline rank of one of a replica's ranks, counted over all of its groups.
    pub(crate) fn holder(&self, place: usize) -> usize {
        let (mut pipeline_rank, mut end) = (0, self.of(0));
        while end <= place {
            pipeline_rank += 1;
            end += self.of(pipeline_rank);
        }
        pipeline_rank
    }
}
