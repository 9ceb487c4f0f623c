//! What is known about a stage's boundary before real data crosses it.
//!
//! 1. *Static*: the user declares the specs of a stage's input and output (`StageBox::declare`), and optionally which
//!    of their tensors have gradients (`StageBox::declare_metadata`). A gradient that does not fit its tensor is
//!    refused when the stage is built.
//! 2. *Dynamic*: every stage runs forward and backward on zeros of the first microbatch's shape, each on the output
//!    of the stage before; then again with one more sample. Sizes that change with the number of samples are free.
//! 3. All ranks use one mode: the static one if every stage of every rank declares its specs. If only some do, the
//!    declared specs are compared with those found on zeros.
//!
//! Metadata is never required: every message describes its own contents, so shapes may change from microbatch to
//! microbatch. With it, a shape that changes where it should not is reported by name at once ([`Validate`]).

use super::any_tensor::TensorKind;
use super::payload_spec::{PayloadSpec, SpecMismatch};
use super::tensor_spec::TensorSpec;

/// Which payloads are compared with the metadata during training.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Validate {
    /// None.
    #[default]
    Off,
    /// Those of the first step.
    FirstStep,
    /// All.
    EveryMicrobatch,
}

/// A place at a stage's boundary.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum StagePort {
    /// The stage's input, including values from past the stage before.
    Input,
    /// The stage's output, including values that go past the next stage.
    Output,
    /// The gradients of its outputs, as received.
    OutputGradient,
    /// The gradients of its inputs, as sent back.
    InputGradient,
}

impl std::fmt::Display for StagePort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            StagePort::Input => "input",
            StagePort::Output => "output",
            StagePort::OutputGradient => "output's gradients",
            StagePort::InputGradient => "input's gradients",
        })
    }
}

/// What is known about one stage's boundary.
///
/// Gradients are described as a list of optional tensors: its length, then for each tensor tag 1 and the gradient's
/// spec, or tag 0 if it has no gradient (integers, unused outputs, the model's input, and everything before the first
/// stage that trains).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StageMetadata {
    /// Its input.
    pub input: Option<PayloadSpec>,
    /// Its output; `None` for the last stage in training, which gives a loss.
    pub output: Option<PayloadSpec>,
    /// The gradients of its outputs, if they were declared or found on zeros.
    pub output_gradients: Option<PayloadSpec>,
    /// The gradients of its inputs, if they were declared or found on zeros.
    pub input_gradients: Option<PayloadSpec>,
}

impl StageMetadata {
    /// The spec at one port, if it is known.
    pub fn at(&self, port: StagePort) -> Option<&PayloadSpec> {
        match port {
            StagePort::Input => self.input.as_ref(),
            StagePort::Output => self.output.as_ref(),
            StagePort::OutputGradient => self.output_gradients.as_ref(),
            StagePort::InputGradient => self.input_gradients.as_ref(),
        }
    }

    /// Returns the first gradient that does not fit its tensor: its shape or type differs, or its tensor is not
    /// float, or does not exist.
    pub(crate) fn unfit_gradient(&self) -> Option<(StagePort, SpecMismatch)> {
        let ports = [
            (StagePort::OutputGradient, &self.output, &self.output_gradients),
            (StagePort::InputGradient, &self.input, &self.input_gradients),
        ];
        ports.into_iter().find_map(|(port, value, gradients)| {
            Some((port, unfit(value.as_ref().unwrap_or(&PayloadSpec::default()), gradients.as_ref()?)?))
        })
    }

    /// Records the spec at one port. If a spec is already known, sizes in which they differ become free.
    ///
    /// # Errors
    /// Returns both specs if they differ in more than sizes.
    pub(crate) fn note(&mut self, port: StagePort, spec: PayloadSpec) -> Result<(), (PayloadSpec, PayloadSpec)> {
        let place = match port {
            StagePort::Input => &mut self.input,
            StagePort::Output => &mut self.output,
            StagePort::OutputGradient => &mut self.output_gradients,
            StagePort::InputGradient => &mut self.input_gradients,
        };
        let joined = match place {
            Some(known) => known.join(&spec).ok_or_else(|| (known.clone(), spec))?,
            None => spec,
        };
        *place = Some(joined);
        Ok(())
    }
}

/// Returns the first of these gradients that does not fit its tensor.
fn unfit(value: &PayloadSpec, gradients: &PayloadSpec) -> Option<SpecMismatch> {
    let tensors: Vec<&TensorSpec> = value.tensors().collect();
    let count = || format!("a list of {} optional tensor(s)", tensors.len());
    let list = gradients.optional_tensors().filter(|list| list.len() == tensors.len());
    let Some(list) = list else {
        return Some(SpecMismatch { tensor: None, expected: count(), got: gradients.to_string() });
    };
    let differs = |(place, (gradient, of)): (usize, (Option<&TensorSpec>, &&TensorSpec))| {
        let gradient = gradient?;
        let known = |(one, other): (&Option<usize>, &Option<usize>)| one.is_none() || other.is_none() || one == other;
        let fits = of.kind() == TensorKind::Float
            && gradient.dtype == of.dtype
            && gradient.dims.len() == of.dims.len()
            && gradient.dims.iter().zip(&of.dims).all(known);
        let expected = if of.kind() == TensorKind::Float { of.to_string() } else { format!("none, as it is {of}") };
        (!fits).then(|| SpecMismatch { tensor: Some(place), expected, got: gradient.to_string() })
    };
    list.into_iter().zip(&tensors).enumerate().find_map(differs)
}
