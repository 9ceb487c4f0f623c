//! What is known of a stage's boundary before real data crosses it.
//!
//! 1. *Static*: the user declares the specs of a stage's input and output (`StageBox::declare`).
//! 2. *Dynamic*: every stage runs on zeros of the first microbatch's shape, forward and then backward, each stage on the
//!    output of the one before; then again with one more sample. Sizes that change with the number of samples are free.
//! 3. All ranks use one mode: the static one if every stage of every rank declares its specs. If only some do, what is
//!    declared is compared with what was found.
//!
//! Metadata is never required: every message describes its own contents, so shapes may change from microbatch to
//! microbatch. It has two uses. A link that posts receives can post them, at the right size, before the first message
//! ([`Link::expect`](crate::link::Link::expect)). And a shape that changes where it should not is reported by name at once
//! ([`Validate`]).

use super::payload_spec::PayloadSpec;

/// Which payloads are compared with the metadata while training.
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
    /// The stage's input, including values from past its neighbour.
    Input,
    /// Its output, including values that go past the next stage.
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

/// What is known of one stage's boundary.
///
/// Gradients are described as a list of optional tensors: its length, then for each tensor tag 1 and the gradient's spec,
/// or tag 0 where there is none (integers, outputs that nothing uses, the model's input).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StageMetadata {
    /// Its input.
    pub input: Option<PayloadSpec>,
    /// Its output; `None` for the last stage in training, which gives a loss.
    pub output: Option<PayloadSpec>,
    /// The gradients of its outputs; known only from a run on zeros.
    pub output_gradients: Option<PayloadSpec>,
    /// The gradients of its inputs; known only from a run on zeros.
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

    /// Records the spec at one port; if one is known, sizes in which they differ become free.
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
