//! What goes into a stage's forward and backward, and what comes out of them, for one microbatch.

use crate::ops::HeldOutputs;
use crate::payload::{AnyTensor, Payload, TensorKind};
use crate::stage::batch::LossPart;
use crate::stage::error::StageError;
use burn::tensor::{DType, Shape};

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

    /// The same call with a leaf of autodiff's graph for each tensor; `leaf` also gets true if its gradient is wanted.
    /// Also returns the leaves, one for each gradient that the backward returns; `None` if there is none to compute.
    pub(super) fn with_leaves<E>(
        self,
        mut leaf: impl FnMut(AnyTensor, bool) -> Result<AnyTensor, E>,
    ) -> Result<(Self, Gradients), E> {
        let mut attach = |payload: Payload, wanted: &dyn Fn(usize) -> bool| {
            let mut leaves = Gradients::new();
            let attached = payload.map_tensors(|index, tensor| {
                let leaf = leaf(tensor, wanted(index))?;
                leaves.push((wanted(index) && leaf.kind() == TensorKind::Float).then(|| leaf.clone()));
                Ok::<_, E>(leaf)
            })?;
            Ok::<_, E>((attached, leaves))
        };
        let (input, mut leaves) = attach(self.input, &|_| self.wants_input_gradient)?;
        let (extra, of_extra) = attach(self.extra, &|index| self.extra_gradients.get(index) == Some(&true))?;
        if !self.extra_gradients.is_empty() {
            leaves.extend(of_extra);
        }
        let target = self.target.filter(|_| self.ends_route).map(|target| attach(target, &|_| false)).transpose()?;
        Ok((Self { input, extra, target: target.map(|(target, _)| target), ..self }, leaves))
    }
}

/// What a training forward gives: the stage's function under autodiff, an engine without (`inner`).
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

/// The graph's nodes of the outputs that can have a gradient; `None` if there is no backward to run.
pub(super) fn held_outputs(outputs: Vec<AnyTensor>) -> Option<HeldOutputs> {
    let floats = outputs.into_iter().filter(|output| output.kind() == TensorKind::Float);
    HeldOutputs::new(floats.map(AnyTensor::into_dispatch).collect())
}

/// One gradient for each tensor of a payload; `None` for a tensor without one.
pub(crate) type Gradients = Vec<Option<AnyTensor>>;

/// Refuses gradients that do not fit their outputs, of which shape and element type are given; `None` is an output
/// that can have no gradient.
pub(super) fn check_gradients<'a>(
    seeds: &Gradients,
    outputs: impl ExactSizeIterator<Item = Option<(&'a Shape, DType)>>,
) -> Result<(), StageError> {
    if seeds.len() != outputs.len() {
        return Err(StageError::GradientCount { got: seeds.len(), expected: outputs.len() });
    }
    let text = |shape: &Shape, dtype: DType| format!("{shape:?} of {dtype:?}");
    for (output, (seed, spec)) in seeds.iter().zip(outputs).enumerate() {
        let (Some(seed), Some((shape, dtype))) = (seed, spec) else { continue };
        if seed.shape() != *shape || seed.dtype() != dtype {
            let (got, expected) = (text(&seed.shape(), seed.dtype()), text(shape, dtype));
            return Err(StageError::GradientSpec { output, got, expected });
        }
    }
    Ok(())
}

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
