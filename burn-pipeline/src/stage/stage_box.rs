//! A stage of any module type, as a pipeline's factory makes it.

use super::Stage;
use super::batch::Loss;
use super::boundary::Boundary;
use super::boundary::PayloadSpec;
use super::boundary::StageMetadata;
use super::engine::StageFunction;
use super::erased::ErasedStage;
use super::erased::Typed;
use super::state::Names;

/// A stage of any module type, as the factory of a pipeline returns it.
pub struct StageBox(Box<dyn ErasedStage>);

impl std::fmt::Debug for StageBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("StageBox").field(&self.0.module_type()).finish()
    }
}

impl StageBox {
    /// A stage that hands its outputs on.
    pub fn new<M: Stage>(module: M) -> Self {
        Self::from_parts(module, StageFunction::forward_only())
    }

    /// The last stage of a model, with the loss over its outputs and the batch's target.
    ///
    /// The loss is a `Tensor<1>` of one element, or a [`Loss`] with a weight.
    pub fn with_loss<M: Stage, T: Boundary, L: Into<Loss>>(
        module: M,
        loss: impl Fn(M::Output, T) -> L + Send + Sync + 'static,
    ) -> Self {
        Self::from_parts(module, StageFunction::with_loss(loss))
    }

    fn from_parts<M: Stage>(module: M, function: StageFunction<M>) -> Self {
        Self(Box::new(Typed::new(module, function)))
    }

    /// Declares what the stage takes and hands on; see [`StageMetadata`]. The last stage, which gives a loss, has no
    /// output to declare.
    pub fn declare(mut self, input: PayloadSpec, output: Option<PayloadSpec>) -> Self {
        self.0.options_mut().declared = Some(StageMetadata { input: Some(input), output, ..StageMetadata::default() });
        self
    }

    /// Says how the stage's parameters are called in the whole model, so that checkpoints fit other cuts; by default
    /// by their paths within the stage.
    pub fn named(mut self, names: Names) -> Self {
        self.0.options_mut().names = names;
        self
    }

    /// Keeps the stage's input alone from its forward to its backward, and runs the forward again there: less memory
    /// for each microbatch that waits, and one forward more to compute.
    pub fn recomputed(mut self, recompute: bool) -> Self {
        self.0.options_mut().recompute = recompute;
        self
    }

    /// Says whether the stage's parameters, gradients and optimizer state are sharded over data-parallel replicas, whatever
    /// `Builder::sharded` says of all stages; without replicas it says nothing. All replicas must say the same.
    ///
    /// When a stage is gathered and released is written into plans by `Builder::sharded(true)`; where that is not said,
    /// a stage that is sharded by itself is gathered from the start of a step's row to its end.
    pub fn sharded(mut self, sharded: bool) -> Self {
        self.0.options_mut().sharded = Some(sharded);
        self
    }

    /// The stage, to be driven.
    pub fn into_inner(self) -> Box<dyn ErasedStage> {
        self.0
    }
}
