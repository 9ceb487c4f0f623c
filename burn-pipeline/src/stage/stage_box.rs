//! A stage of any module type, as a pipeline's factory makes it.
//!
//! The loss is given with the last stage's module ([`StageBox::with_loss`]) and not implemented by it, so any module
//! can be the last one.

use super::batch::Loss;
use super::engine::StageFunction;
use super::erased::{ErasedStage, Typed};
use super::module::Stage;
use super::state::Names;
use crate::payload::{Boundary, PayloadSpec, StageMetadata};

/// A stage of any module type, as the factory of a pipeline returns it.
pub struct StageBox(Box<dyn ErasedStage>);

impl std::fmt::Debug for StageBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("StageBox").field(&self.0.module_type()).finish()
    }
}

impl StageBox {
    /// A stage whose outputs go to the next stage.
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

    pub(crate) fn from_parts<M: Stage>(module: M, function: StageFunction<M>) -> Self {
        Self(Box::new(Typed::new(module, function)))
    }

    /// Declares the specs of the stage's input and output; see [`StageMetadata`]. The last stage gives a loss and
    /// has no output to declare.
    pub fn declare(self, input: PayloadSpec, output: Option<PayloadSpec>) -> Self {
        self.declare_metadata(StageMetadata { input: Some(input), output, ..StageMetadata::default() })
    }

    /// Declares all that is known about the stage's boundary, including its gradients, as lists with one optional
    /// tensor for each tensor. [`Pipeline::metadata`](crate::train::Pipeline::metadata) returns what a run on zeros
    /// finds. Parts that are not declared are not compared.
    ///
    /// A gradient that does not fit its tensor is refused when the stage is built. A gradient that is present or
    /// missing against the declaration is refused where [`Validate`](crate::payload::Validate) compares.
    ///
    /// ```
    /// use burn::tensor::{Bool, Device, Tensor};
    /// use burn_pipeline::payload::{PayloadSpec, StageMetadata};
    /// // Hidden states of width 8 with a mask. Only the hidden states have a gradient.
    /// let hidden = || Tensor::<2>::zeros([1, 8], &Device::flex());
    /// let mask = Tensor::<2, Bool>::full([1, 8], false, &Device::flex());
    /// let input = Some(PayloadSpec::of((hidden(), mask)).free(0));
    /// let input_gradients = Some(PayloadSpec::of(vec![Some(hidden()), None]).free(0));
    /// let metadata = StageMetadata { input, input_gradients, ..StageMetadata::default() };
    /// # let _ = metadata;
    /// ```
    pub fn declare_metadata(mut self, metadata: StageMetadata) -> Self {
        self.0.options_mut().declared = Some(metadata);
        self
    }

    /// Sets the names of the stage's parameters in the whole model, so that checkpoints fit other cuts; by default
    /// they are the paths within the stage.
    pub fn named(mut self, names: Names) -> Self {
        self.0.options_mut().names = names;
        self
    }

    /// Recomputes activations: the stage keeps only its input until its backward, and then runs the forward again.
    /// This takes less memory for each microbatch in flight, and one more forward.
    pub fn recomputed(mut self, recompute: bool) -> Self {
        self.0.options_mut().recompute = recompute;
        self
    }

    /// Compiles the stage if it is captured and runs on a processor, as `Builder::compile` does for all stages:
    /// faster, with the same numbers up to rounding.
    pub fn compiled(mut self, compile: bool) -> Self {
        self.0.options_mut().compile = compile;
        self
    }

    /// Sets whether the stage's parameters, gradients and optimizer state are sharded over data-parallel replicas,
    /// overriding `Builder::sharded`. All replicas must set the same; without replicas it has no effect.
    ///
    /// `Builder::sharded(true)` writes into plans when stages are gathered and released. Without it, a stage that is
    /// sharded here stays gathered for the whole step.
    pub fn sharded(mut self, sharded: bool) -> Self {
        self.0.options_mut().sharded = Some(sharded);
        self
    }

    /// Unwraps the stage, to be run.
    pub(crate) fn into_inner(self) -> Box<dyn ErasedStage> {
        self.0
    }
}
