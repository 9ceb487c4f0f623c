//! The custom tensor operations beneath a stage: what Burn's autodiff does not offer as it is.
//!
//! [`PipelineOps`] is a backend extension: one trait, implemented for every backend and for autodiff over it,
//! so that a `Tensor` of any device reaches it through Burn's dispatch. One file an operation.

mod seed;

pub use seed::{GradientSlot, seed_root};

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};

/// Operations that a pipeline needs beyond Burn's own; users reach them through functions, not this trait.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cubecl-backend"),
    Capture: cfg(feature = "traced"),
    Autodiff,
)]
pub trait PipelineOps: Backend {
    /// Joins an output to a chain of outputs whose backward is seeded later; see [`seed_root`].
    ///
    /// Without autodiff there is nothing to seed: the chain is returned unchanged.
    fn seed_output(chain: FloatTensor<Self>, output: FloatTensor<Self>, slot: GradientSlot) -> FloatTensor<Self> {
        let _ = (output, slot);
        chain
    }
}

#[cfg(feature = "flex")]
impl PipelineOps for burn::backend::Flex {}

// With feature `fusion`, `Cube` is the fused backend: one implementation serves both.
#[cfg(feature = "cubecl-backend")]
impl PipelineOps for burn::backend::Cube {}

#[cfg(feature = "traced")]
impl PipelineOps for burn::backend::Capture {}
