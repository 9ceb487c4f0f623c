//! A stage as a function of tensors: the module's forward and, on the last stage, the loss.

use super::call::ForwardCall;
use crate::payload::{Boundary, BoundaryError, Payload};
use crate::stage::Stage;
use crate::stage::batch::Loss;
use crate::stage::error::StageError;
use burn::module::Module;
use burn::tensor::GradientCheckpointingStrategy;
use std::sync::Arc;

/// Checks that a payload holds a value of a certain type.
pub(crate) type PayloadCheck = fn(Payload) -> Result<(), BoundaryError>;

/// Checks of what a stage reads from the batch: a batch that does not fit is refused before anything runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchChecks {
    /// The input (only the first stage's comes from the batch).
    pub(crate) input: PayloadCheck,
    /// The extras.
    pub(crate) extra: PayloadCheck,
    /// The target, if there is a loss.
    pub(crate) target: Option<PayloadCheck>,
}

fn check<T: Boundary>(payload: Payload) -> Result<(), BoundaryError> {
    T::from_payload(payload).map(drop)
}

type LossFunction<O> = Arc<dyn Fn(O, Payload) -> Result<Loss, BoundaryError> + Send + Sync>;

/// What a training forward computes, still under autodiff.
#[derive(Debug)]
pub(crate) enum TrackedOutput {
    /// The outputs.
    Output(Payload),
    /// The loss over them.
    Loss(Box<Loss>),
}

/// The forward of a stage's module, followed by the user's loss on the last stage.
pub(crate) struct StageFunction<M: Stage> {
    loss: Option<LossFunction<M::Output>>,
    target: Option<PayloadCheck>,
    /// True if losses are returned with the outputs that they were computed from.
    keeps_output: bool,
}

impl<M: Stage> Clone for StageFunction<M> {
    fn clone(&self) -> Self {
        Self { loss: self.loss.clone(), target: self.target, keeps_output: self.keeps_output }
    }
}

impl<M: Stage> std::fmt::Debug for StageFunction<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StageFunction").field("loss", &self.loss.is_some()).finish()
    }
}

impl<M: Stage> StageFunction<M> {
    /// The module's forward alone.
    pub(crate) fn forward_only() -> Self {
        Self { loss: None, target: None, keeps_output: false }
    }

    /// The module's forward followed by a loss.
    pub(crate) fn with_loss<T: Boundary, L: Into<Loss>>(
        loss: impl Fn(M::Output, T) -> L + Send + Sync + 'static,
    ) -> Self {
        let erased = move |output: M::Output, target: Payload| Ok(loss(output, T::from_payload(target)?).into());
        Self { loss: Some(Arc::new(erased)), target: Some(check::<T>), keeps_output: false }
    }

    /// Sets whether training forwards return outputs besides their loss.
    pub(crate) fn keep_output(&mut self, keep: bool) {
        self.keeps_output = keep;
    }

    /// Checks of what the stage reads from the batch.
    pub(crate) fn batch_checks(&self) -> BatchChecks {
        BatchChecks { input: check::<M::Input>, extra: check::<M::Extra>, target: self.target }
    }

    /// The module's outputs for a microbatch.
    pub(crate) fn output(&self, module: &M, input: Payload, extra: Payload) -> Result<M::Output, StageError> {
        let input = M::Input::from_payload(input).map_err(StageError::Input)?;
        let extra = M::Extra::from_payload(extra).map_err(|source| StageError::extra(source, &module.extras()))?;
        Ok(module.forward(input, extra))
    }

    /// The loss of outputs against a target.
    pub(crate) fn loss(&self, output: M::Output, target: Option<Payload>) -> Result<Loss, StageError> {
        let loss = self.loss.as_ref().ok_or(StageError::NoLoss)?;
        let loss = loss(output, target.ok_or(StageError::NoTarget)?).map_err(StageError::Target)?;
        match loss.value.dims() {
            [1] => Ok(loss),
            shape => Err(StageError::LossShape { shape: shape.to_vec() }),
        }
    }

    /// What a training forward computes: the loss on a stage that ends its route, else the outputs.
    pub(crate) fn train(&self, module: &M, call: ForwardCall) -> Result<TrackedOutput, StageError> {
        let output = self.output(module, call.input, call.extra)?;
        if call.ends_route {
            let (output, kept) = match self.keeps_output {
                false => (output, None),
                true => {
                    let kept = output.into_payload();
                    (M::Output::from_payload(kept.clone()).map_err(StageError::Input)?, Some(kept))
                }
            };
            let loss = self.loss(output, call.target)?;
            return Ok(TrackedOutput::Loss(Box::new(Loss { output: kept, ..loss })));
        }
        Ok(TrackedOutput::Output(output.into_payload()))
    }
}

/// The checkpointing strategy of a module's parameters: inputs must carry the same one.
pub(crate) fn strategy_of<M: Module>(module: &M) -> GradientCheckpointingStrategy {
    let on_device = |device: burn::tensor::Device| device.gradient_checkpointing_strategy();
    module.devices().into_iter().find_map(on_device).unwrap_or_default()
}
