//! `IF` and `IB`: a rank's shard of the embedding, without autodiff.

use crate::tensor_parallel::OwnIds;
use burn::tensor::{IndexingUpdateOp, Tensor};

/// The vectors `[n, d]` of a rank's own ids, with zeros for all others, from its shard `[V / ranks, d]`.
pub(crate) fn look_up(weight: Tensor<2>, ids: &OwnIds<1>) -> Tensor<2> {
    ids.keep(weight.select(0, ids.places()))
}

/// The gradient of the shard, from that of the vectors `[n, d]`.
pub(crate) fn weight_gradient(weight: &Tensor<2>, ids: &OwnIds<1>, gradient: Tensor<2>) -> Tensor<2> {
    weight.zeros_like().select_assign(0, ids.places(), ids.keep(gradient), IndexingUpdateOp::Add)
}
