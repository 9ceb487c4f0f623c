//! The ids of a microbatch that belong to a rank's shard, or to its part of a layer.

use crate::tensor_parallel::{TensorGroup, own_ids};
use burn::tensor::{Bool, Int, Tensor};

/// Ids as indices into a rank's shard of the vocabulary. Other ranks' ids have index 0, and are marked.
#[derive(Clone, Debug)]
pub(crate) struct OwnIds {
    places: Tensor<1, Int>,
    /// Which ids are another rank's; `None` if one rank has all words.
    elsewhere: Option<Tensor<1, Bool>>,
}

impl OwnIds {
    /// Makes it from ids `[n]` of a vocabulary of `words` words.
    pub(crate) fn of(group: &TensorGroup, words: usize, ids: Tensor<1, Int>) -> Self {
        match own_ids(group, group.part(words), ids.clone()) {
            Some((places, elsewhere)) => Self { places, elsewhere: Some(elsewhere) },
            None => Self { places: ids, elsewhere: None },
        }
    }

    /// The indices `[n]`.
    pub(super) fn places(&self) -> Tensor<1, Int> {
        self.places.clone()
    }

    /// The indices as a column `[n, 1]`.
    pub(super) fn column(&self) -> Tensor<2, Int> {
        self.places().unsqueeze_dim(1)
    }

    /// Rows `[n, k]`, with zeros for other ranks' ids.
    pub(super) fn keep(&self, rows: Tensor<2>) -> Tensor<2> {
        match &self.elsewhere {
            None => rows,
            Some(elsewhere) => rows.mask_fill(elsewhere.clone().unsqueeze_dim::<2>(1), 0.0),
        }
    }
}
