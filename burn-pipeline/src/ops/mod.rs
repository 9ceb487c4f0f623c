//! Tensor operations of stages that Burn's autodiff does not have: seeded backwards, deferred weight gradients.
//!
//! `PipelineOps` is a backend extension: one trait, implemented for every backend and for autodiff over it, so that a
//! `Tensor` of any device reaches it through Burn's dispatch. `seed` has seeded backwards, `deferred` deferred weight
//! gradients, and `paired` operations whose backward is another operation, such as collectives.

mod deferred;
mod paired;
mod seed;

pub(crate) use deferred::DeferredCall;
pub use deferred::{Deferral, DeferredError, DeferredForward, DeferredOp, deferred, expert_matmul};
pub(crate) use paired::{Pair, paired};
pub(crate) use seed::{HeldNode, HeldOutputs, OutputGradient};

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, DispatchKindConversion, DispatchTensor, backend_extension};
use deferred::record::{Operands, join};

/// Operations that a pipeline needs beyond Burn's own; users reach them through functions, not this trait.
#[backend_extension(
    Flex,
    Cube: cfg(feature = "cubecl-backend"),
    Capture,
    Autodiff,
)]
pub(crate) trait PipelineOps: Backend {
    /// Keeps the graph node of an output, and returns the output without it; see [`HeldOutputs`].
    ///
    /// Without autodiff there is no node: the output is returned unchanged.
    fn hold_output(output: FloatTensor<Self>, held: HeldNode) -> FloatTensor<Self> {
        let _ = held;
        output
    }

    /// Joins an output to a chain of outputs that have a gradient; see [`HeldOutputs`].
    ///
    /// Without autodiff there is nothing to seed: the chain is returned unchanged.
    fn seed_output(chain: FloatTensor<Self>, held: HeldNode, gradient: OutputGradient) -> FloatTensor<Self> {
        let _ = (held, gradient);
        chain
    }

    /// Joins an output to the graph as the child of its operands, whose gradients may wait; see
    /// [`deferred`](fn@deferred).
    ///
    /// Without autodiff there is no graph: the output is returned unchanged.
    fn defer(
        output: FloatTensor<Self>,
        #[extension_type] operands: Operands<Self>,
        call: DeferredCall,
    ) -> FloatTensor<Self> {
        let _ = (operands, call);
        output
    }

    /// Runs an operation; its backward runs another one. See [`paired`](fn@paired).
    fn pair(input: FloatTensor<Self>, pair: Pair) -> FloatTensor<Self>;
}

impl PipelineOps for burn::backend::Flex {
    fn pair(input: FloatTensor<Self>, pair: Pair) -> FloatTensor<Self> {
        pair.run::<Self>(input)
    }
}

// With feature `fusion`, `Cube` is the fused backend: one implementation serves both.
#[cfg(feature = "cubecl-backend")]
impl PipelineOps for burn::backend::Cube {
    fn pair(input: FloatTensor<Self>, pair: Pair) -> FloatTensor<Self> {
        pair.run::<Self>(input)
    }
}

impl PipelineOps for burn::backend::Capture {
    fn pair(input: FloatTensor<Self>, pair: Pair) -> FloatTensor<Self> {
        pair.record(input)
    }
}

impl<B: Backend + PipelineOps, C: CheckpointStrategy> PipelineOps for Autodiff<B, C>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn hold_output(output: FloatTensor<Self>, held: HeldNode) -> FloatTensor<Self> {
        seed::hold::<B, C>(output, held)
    }

    fn seed_output(chain: FloatTensor<Self>, held: HeldNode, gradient: OutputGradient) -> FloatTensor<Self> {
        seed::join::<B, C>(chain, held, gradient)
    }

    fn defer(output: FloatTensor<Self>, operands: Operands<Self>, call: DeferredCall) -> FloatTensor<Self> {
        match operands {
            Operands::One(a) => join::<B, C, 1>(output, [a], call),
            Operands::Two(a, b) => join::<B, C, 2>(output, [a, b], call),
            Operands::Three(a, b, c) => join::<B, C, 3>(output, [a, b, c], call),
            Operands::Four(a, b, c, d) => join::<B, C, 4>(output, [a, b, c, d], call),
        }
    }

    fn pair(input: FloatTensor<Self>, pair: Pair) -> FloatTensor<Self> {
        paired::tracked::<B, C>(input, pair)
    }
}
