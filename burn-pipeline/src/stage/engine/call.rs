//! What goes into a stage's forward and backward, and what comes out of them, for one microbatch.

use crate::payload::{AnyTensor, Payload};
use crate::stage::batch::LossPart;

/// The call of a stage's forward for one microbatch.
#[derive(Clone, Debug)]
pub(crate) struct ForwardCall {
    /// The microbatch's index in the whole batch.
    pub microbatch: usize,
    /// The stage's input, without autodiff.
    pub input: Payload,
    /// Its extras, without autodiff.
    pub extra: Payload,
    /// The target, on a stage that ends its route.
    pub target: Option<Payload>,
    /// True if the stage ends its route, so that its loss is wanted instead of its outputs.
    pub ends_route: bool,
    /// True if the gradient of the input is wanted (on all stages but the first, unless the caller wants the batch's).
    pub wants_input_gradient: bool,
    /// For each of the extras' tensors, true if its gradient is wanted; the backward returns theirs after the input's.
    /// Empty if the backward returns none of them.
    pub extra_gradients: Vec<bool>,
}

impl ForwardCall {
    /// Returns true if the gradient of any tensor is wanted, beside the weights'.
    pub(super) fn wants_gradients(&self) -> bool {
        self.wants_input_gradient || self.extra_gradients.contains(&true)
    }
}

/// What a training forward gives.
#[derive(Clone, Debug)]
pub(crate) enum ForwardOutput {
    /// The outputs, for the next stage.
    Activations(Payload),
    /// The loss of a stage that ends its route.
    Loss(Box<LossPart>),
}

impl ForwardOutput {
    /// The outputs, or the loss.
    pub(crate) fn parts(self) -> (Option<Payload>, Option<LossPart>) {
        match self {
            ForwardOutput::Activations(output) => (Some(output), None),
            ForwardOutput::Loss(loss) => (None, Some(*loss)),
        }
    }

    /// The tensors that a backward starts from: the outputs, or the loss.
    pub(super) fn roots(&self) -> Vec<AnyTensor> {
        match self {
            ForwardOutput::Activations(payload) => payload.tensors().cloned().collect(),
            ForwardOutput::Loss(loss) => vec![loss.value.clone()],
        }
    }

    /// The same without autodiff.
    pub(super) fn inner(self) -> Self {
        match self {
            ForwardOutput::Activations(payload) => ForwardOutput::Activations(payload.inner()),
            ForwardOutput::Loss(loss) => ForwardOutput::Loss(Box::new(loss.inner())),
        }
    }

    /// The tensors of the outputs, or of the loss.
    pub(super) fn tensors(&self) -> Box<dyn Iterator<Item = &AnyTensor> + '_> {
        match self {
            ForwardOutput::Activations(payload) => Box::new(payload.tensors()),
            ForwardOutput::Loss(loss) => Box::new(loss.tensors()),
        }
    }
}

/// One gradient for each tensor of a payload; `None` for a tensor without one.
pub(crate) type Gradients = Vec<Option<AnyTensor>>;

/// The call of a stage's backward for one microbatch.
#[derive(Clone, Debug)]
pub(crate) struct BackwardCall {
    /// The microbatch's index in the whole batch.
    pub microbatch: usize,
    /// The gradient of each output tensor, or the loss's seed.
    pub seeds: Gradients,
    /// True for `B`; false for `I`, which leaves the gradients of the weights to `W`.
    pub whole: bool,
}
