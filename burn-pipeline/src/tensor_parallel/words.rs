//! The words of a vocabulary that a member has.

use super::group::TensorGroup;
use burn::tensor::{Bool, Int, Tensor};
use std::ops::Range;

/// Ids relative to this rank's part of a vocabulary, the words `own`: 0 for the ids of other ranks, with a mask of
/// those; `None` if one rank has all words. The first rank leaves ids below 0 as they are, and the last rank those
/// that are too large, for the device to refuse.
pub(crate) fn own_ids<const D: usize>(
    group: &TensorGroup,
    own: Range<usize>,
    ids: Tensor<D, Int>,
) -> Option<(Tensor<D, Int>, Tensor<D, Bool>)> {
    let Range { start, end } = own;
    let (first, last) = (group.member() == 0, group.member() + 1 == group.size());
    let below = (!first).then(|| ids.clone().lower_elem(start as i64));
    let above = (!last).then(|| ids.clone().greater_equal_elem(end as i64));
    let elsewhere = match (below, above) {
        (Some(below), Some(above)) => below.bool_or(above),
        (one, other) => one.or(other)?,
    };
    Some((ids.sub_scalar(start as i64).mask_fill(elsewhere.clone(), 0), elsewhere))
}
