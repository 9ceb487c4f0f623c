//! What a captured forward returns, so that a replay's plain tensors become the same thing again.

use crate::stage::batch::{LossPart, Weight};
use crate::stage::boundary::{AnyTensor, Payload, PayloadPart};
use crate::stage::engine::call::ForwardOutput;
use crate::stage::error::StageError;
use burn::backend::DispatchTensor;

/// What a training forward returns.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::stage::engine) enum OutputSpec {
    /// Outputs: tags, and `None` at the place of a tensor.
    Output(Vec<Option<usize>>),
    /// A loss, and whether observed numbers follow it and its weight.
    Loss(WeightSource, bool),
}

/// The source of a loss's weight.
#[derive(Clone, Debug)]
pub(in crate::stage::engine) enum WeightSource {
    None,
    Host(f64),
    Device,
}

/// Weights are equal to the last bit, NaN included.
impl PartialEq for WeightSource {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Host(mine), Self::Host(theirs)) => mine.to_bits() == theirs.to_bits(),
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

impl OutputSpec {
    /// How many gradients a backward takes.
    pub(in crate::stage::engine) fn outputs(&self) -> usize {
        match self {
            OutputSpec::Output(parts) => parts.iter().filter(|part| part.is_none()).count(),
            OutputSpec::Loss(..) => 1,
        }
    }

    /// What the training forward returns, from the program's results.
    ///
    /// # Errors
    /// If there is no result for the loss.
    pub(in crate::stage::engine) fn forward_output(
        &self,
        outputs: Vec<DispatchTensor>,
    ) -> Result<ForwardOutput, StageError> {
        let mut outputs = outputs.into_iter().map(AnyTensor::from_dispatch);
        match self {
            OutputSpec::Output(parts) => {
                let part = |part: &Option<usize>| match part {
                    Some(tag) => Some(PayloadPart::Tag(*tag)),
                    None => outputs.next().map(PayloadPart::Tensor),
                };
                Ok(ForwardOutput::Activations(Payload::from_parts(parts.iter().filter_map(part).collect::<Vec<_>>())))
            }
            OutputSpec::Loss(weight, observed) => {
                // The loss comes first, then its weight if that was computed, then what is observed.
                let value = outputs.next().ok_or(StageError::NoLoss)?;
                let weight = match weight {
                    WeightSource::None => None,
                    WeightSource::Host(weight) => Some(Weight::Host(*weight)),
                    WeightSource::Device => outputs.next().map(Weight::Device),
                };
                let observed = if *observed { outputs.next() } else { None };
                Ok(ForwardOutput::Loss(Box::new(LossPart { value, weight, observed })))
            }
        }
    }
}
