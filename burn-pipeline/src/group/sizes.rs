//! How many ranks hold the stages of each pipeline rank together.

use std::sync::Arc;

/// How many ranks hold each stage together: one number for all pipeline ranks, or one for each of them in their order.
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
    /// The sizes as they were given: a single one is for all pipeline ranks.
    pub(crate) fn given(&self) -> &[usize] {
        &self.0
    }

    /// The most ranks that hold a stage together; 0 if no size was given.
    pub(crate) fn largest(&self) -> usize {
        self.0.iter().copied().max().unwrap_or_default()
    }

    /// The ranks that hold the stages of a pipeline rank together, at least one.
    pub(crate) fn of(&self, pipeline_rank: usize) -> usize {
        let size = if let [one] = *self.0 { Some(one) } else { self.0.get(pipeline_rank).copied() };
        size.unwrap_or_default().max(1)
    }

    /// The ranks of one replica that hold the stages of all earlier pipeline ranks.
    pub(crate) fn before(&self, pipeline_rank: usize) -> usize {
        match *self.0 {
            [one] => one.max(1) * pipeline_rank,
            _ => (0..pipeline_rank).map(|earlier| self.of(earlier)).sum(),
        }
    }

    /// The pipeline rank that one of a replica's ranks, counted over all of its groups, belongs to.
    pub(crate) fn holder(&self, place: usize) -> usize {
        match *self.0 {
            [one] => place / one.max(1),
            _ => {
                let (mut pipeline_rank, mut end) = (0, self.of(0));
                while end <= place {
                    pipeline_rank += 1;
                    end += self.of(pipeline_rank);
                }
                pipeline_rank
            }
        }
    }
}
