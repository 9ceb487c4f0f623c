//! The words of a vocabulary that a member has.

use super::group::TensorGroup;
use burn::tensor::{Bool, DType, Int, Tensor};
use std::ops::Range;

/// Ids as indices into a rank's part of a vocabulary. Other ranks' ids have index 0, and are marked.
#[derive(Clone, Debug)]
pub(crate) struct OwnIds<const D: usize> {
    places: Tensor<D, Int>,
    /// Which ids are another rank's; `None` if one rank has all words.
    elsewhere: Option<Tensor<D, Bool>>,
}

impl<const D: usize> OwnIds<D> {
    /// Makes it for the rank with the words `own`. The first rank leaves ids below 0 as they are, and the last rank
    /// those that are too large, for the device to refuse.
    pub(crate) fn of(group: &TensorGroup, own: Range<usize>, ids: Tensor<D, Int>) -> Self {
        let (Range { start, end }, ids) = (own, holding_all(ids));
        let (first, last) = (group.member() == 0, group.member() + 1 == group.size());
        let below = (!first).then(|| ids.clone().lower_elem(start as i64));
        let above = (!last).then(|| ids.clone().greater_equal_elem(end as i64));
        let elsewhere = match (below, above) {
            (Some(below), Some(above)) => Some(below.bool_or(above)),
            (one, other) => one.or(other),
        };
        let places = match &elsewhere {
            Some(elsewhere) => ids.sub_scalar(start as i64).mask_fill(elsewhere.clone(), 0),
            None => ids,
        };
        Self { places, elsewhere }
    }

    /// The indices.
    pub(crate) fn places(&self) -> Tensor<D, Int> {
        self.places.clone()
    }

    /// Rows `[.., k]`, one for each id, with zeros for other ranks' ids.
    pub(crate) fn keep<const R: usize>(&self, rows: Tensor<R>) -> Tensor<R> {
        match &self.elsewhere {
            None => rows,
            Some(elsewhere) => rows.mask_fill(elsewhere.clone().unsqueeze_dim::<R>(D), 0.0),
        }
    }
}

/// Ids in a type that holds the number of every word. Scalars that do not fit the type of ids would wrap around.
fn holding_all<const D: usize>(ids: Tensor<D, Int>) -> Tensor<D, Int> {
    match ids.dtype() {
        DType::U8 | DType::I8 | DType::U16 | DType::I16 => ids.cast(DType::I32),
        _ => ids,
    }
}
