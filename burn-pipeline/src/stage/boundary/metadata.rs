//! What is known of a stage's boundary before real data crosses it.
//!
//! 1. *Static*: the user declares the forms of a stage's input and output (`StageBox::declare`).
//! 2. *Dynamic*: every stage is run on zeros of the first microbatch's shape, forward and then backward, each stage
//!    on what the one before put out, once as they are and once with a sample more: sizes that change with the number
//!    of samples are free.
//! 3. All ranks use one mode, the static one if every stage of every rank declares its forms. Where some do and some
//!    do not, what is declared is compared with what was found.
//!
//! Nothing needs metadata to run: every message says of itself what it holds, so shapes may change from microbatch to
//! microbatch. They serve twice: links that post receives have them posted, at the right size, before the first message
//! comes ([`Link::expect`](crate::link::Link::expect)); and it is noticed, in good time and by name, that shapes changed
//! where they should not have ([`Validate`]).

use super::payload_spec::PayloadSpec;

/// Which forms are compared with the metadata while training.
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

/// Where the metadata of a pipeline came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetadataMode {
    /// Every stage declared its forms.
    Static,
    /// Stages were run on zeros.
    Dynamic,
}

/// A place at a stage's boundary.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum StagePort {
    /// What the stage takes, what comes past its neighbour included.
    Input,
    /// What it hands on, what goes past the next stage included.
    Output,
    /// The gradients of its outputs, as they come.
    OutputGradient,
    /// The gradients of its inputs, as it hands them back.
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
/// Of gradients it is the form of a list of optional tensors: its length, then for each tensor 1 and the gradient's
/// form, or 0 where there is none (whole numbers, what is used by nobody, the model's input).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StageMetadata {
    /// What the stage takes.
    pub input: Option<PayloadSpec>,
    /// What it hands on; `None` for the last stage in training, which gives a loss.
    pub output: Option<PayloadSpec>,
    /// The gradients that come for what it handed on; known only where stages were run.
    pub output_gradients: Option<PayloadSpec>,
    /// The gradients that it hands back; known only where stages were run.
    pub input_gradients: Option<PayloadSpec>,
}

impl StageMetadata {
    /// The form at one port, if it is known.
    pub fn at(&self, port: StagePort) -> Option<&PayloadSpec> {
        match port {
            StagePort::Input => self.input.as_ref(),
            StagePort::Output => self.output.as_ref(),
            StagePort::OutputGradient => self.output_gradients.as_ref(),
            StagePort::InputGradient => self.input_gradients.as_ref(),
        }
    }

    /// Notes the form at one port; where one is known, sizes in which they differ become free.
    ///
    /// # Errors
    /// Gives both forms back if they differ in more than sizes.
    pub fn note(&mut self, port: StagePort, form: PayloadSpec) -> Result<(), (PayloadSpec, PayloadSpec)> {
        let place = match port {
            StagePort::Input => &mut self.input,
            StagePort::Output => &mut self.output,
            StagePort::OutputGradient => &mut self.output_gradients,
            StagePort::InputGradient => &mut self.input_gradients,
        };
        let joined = match place {
            Some(known) => known.join(&form).ok_or_else(|| (known.clone(), form))?,
            None => form,
        };
        *place = Some(joined);
        Ok(())
    }
}
