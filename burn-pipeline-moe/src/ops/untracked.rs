//! Tensors that enter an autodiff graph without a node.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, AutodiffBackend, Backend};

/// A tensor that the graph does not differentiate.
pub(super) fn untracked<B: Backend, C: CheckpointStrategy>(tensor: FloatTensor<B>) -> FloatTensor<Autodiff<B, C>> {
    Autodiff::<B, C>::from_inner(tensor)
}
