//! What a captured forward returns, with which a replay's plain tensors become the same value again.

use crate::payload::{AnyTensor, Payload, PayloadPart, SpecPart};
use crate::stage::batch::{LossPart, Weight};
use crate::stage::engine::call::ForwardOutput;
use crate::stage::error::StageError;
use burn::backend::DispatchTensor;

/// What a training forward returns.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::stage::engine) enum OutputSpec {
    /// Outputs: tags and plain values, and `None` for each tensor.
    Output(Vec<Option<SpecPart>>),
    /// A loss: the source of its weight, whether observed numbers follow, and the structure of the outputs that
    /// follow those, if they are wanted.
    Loss(WeightSource, bool, Option<Vec<Option<SpecPart>>>),
}

/// The source of a loss's weight.
#[derive(Clone, Debug)]
pub(in crate::stage::engine) enum WeightSource {
    None,
    Host(f64),
    Device,
}

/// Weights are compared bit by bit, so NaN equals itself.
impl PartialEq for WeightSource {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Host(mine), Self::Host(theirs)) => mine.to_bits() == theirs.to_bits(),
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

impl OutputSpec {
    /// The number of gradients that a backward takes.
    pub(in crate::stage::engine) fn outputs(&self) -> usize {
        match self {
            OutputSpec::Output(parts) => parts.iter().filter(|part| part.is_none()).count(),
            OutputSpec::Loss(..) => 1,
        }
    }

    /// Builds what the training forward returns from the program's results.
    ///
    /// # Errors
    /// Returns [`StageError::NoLoss`] if there is no result for the loss.
    pub(in crate::stage::engine) fn forward_output(
        &self,
        outputs: Vec<DispatchTensor>,
    ) -> Result<ForwardOutput, StageError> {
        let mut outputs = outputs.into_iter().map(AnyTensor::from_dispatch);
        match self {
            OutputSpec::Output(parts) => Ok(ForwardOutput::Activations(payload(parts, &mut outputs))),
            OutputSpec::Loss(weight, observed, output) => {
                // The order is: loss, weight if it was computed, observed numbers, outputs.
                let value = outputs.next().ok_or(StageError::NoLoss)?;
                let weight = match weight {
                    WeightSource::None => None,
                    WeightSource::Host(weight) => Some(Weight::Host(*weight)),
                    WeightSource::Device => outputs.next().map(Weight::Device),
                };
                let observed = if *observed { outputs.next() } else { None };
                let output = output.as_ref().map(|parts| payload(parts, &mut outputs));
                Ok(ForwardOutput::Loss(Box::new(LossPart { value, weight, observed, output })))
            }
        }
    }
}

/// The structure of a payload: tags and plain values, and `None` for each tensor.
pub(super) fn structure(payload: &Payload) -> Vec<Option<SpecPart>> {
    let spec = |part: &PayloadPart| match part {
        PayloadPart::Tensor(_) => None,
        PayloadPart::Host(value) => Some(SpecPart::Host(value.clone())),
        PayloadPart::Tag(tag) => Some(SpecPart::Tag(*tag)),
    };
    payload.parts().map(spec).collect()
}

/// A payload with this structure and the next tensors.
fn payload(structure: &[Option<SpecPart>], tensors: &mut impl Iterator<Item = AnyTensor>) -> Payload {
    let part = |spec: &Option<SpecPart>| match spec {
        Some(SpecPart::Host(value)) => Some(PayloadPart::Host(value.clone())),
        Some(SpecPart::Tag(tag)) => Some(PayloadPart::Tag(*tag)),
        Some(SpecPart::Tensor(_)) | None => tensors.next().map(PayloadPart::Tensor),
    };
    Payload::from_parts(structure.iter().filter_map(part).collect::<Vec<_>>())
}
