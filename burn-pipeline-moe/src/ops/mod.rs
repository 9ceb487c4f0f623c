//! Operations beneath Burn's autodiff that a mixture of experts needs.

mod inject;

pub use inject::inject;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, backend_extension};

/// Operations of this crate on every backend; users reach them through functions, not this trait.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cubecl-backend"),
    Capture: cfg(feature = "traced"),
    Autodiff,
)]
pub trait MoeOps: Backend {
    /// Joins a loss to the graph of hidden states; see [`inject`](fn@inject).
    ///
    /// Without autodiff there is no graph: the hidden states are returned unchanged.
    fn inject_loss(hidden: FloatTensor<Self>, loss: FloatTensor<Self>, scale: FloatTensor<Self>) -> FloatTensor<Self> {
        let _ = (loss, scale);
        hidden
    }
}

#[cfg(feature = "flex")]
impl MoeOps for burn::backend::Flex {}

// With feature `fusion`, `Cube` is the fused backend: one implementation serves both.
#[cfg(feature = "cubecl-backend")]
impl MoeOps for burn::backend::Cube {}

#[cfg(feature = "traced")]
impl MoeOps for burn::backend::Capture {}

impl<B: Backend + MoeOps, C: CheckpointStrategy> MoeOps for Autodiff<B, C> {
    fn inject_loss(hidden: FloatTensor<Self>, loss: FloatTensor<Self>, scale: FloatTensor<Self>) -> FloatTensor<Self> {
        inject::join::<B, C>(hidden, loss, scale)
    }
}
