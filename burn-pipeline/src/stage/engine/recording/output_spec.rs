//! What a captured forward returns, with which a replay's plain tensors become the same value again.

use crate::payload::{AnyTensor, Boundary, Payload, PayloadSpec};
use crate::stage::batch::LossPart;
use crate::stage::engine::call::ForwardOutput;
use crate::stage::error::StageError;
use burn::backend::DispatchTensor;

/// What a training forward returns, as the payload of its outputs or of its loss.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::stage::engine) struct OutputSpec {
    is_loss: bool,
    payload: PayloadSpec,
}

impl OutputSpec {
    /// The spec of what a forward gave, and that as a payload.
    pub(super) fn of(given: ForwardOutput) -> (Self, Payload) {
        let (is_loss, payload) = match given {
            ForwardOutput::Activations(payload) => (false, payload),
            ForwardOutput::Loss(loss) => (true, loss.into_payload()),
        };
        (Self { is_loss, payload: PayloadSpec::of_payload(&payload) }, payload)
    }

    /// Builds what the training forward returns from the program's results.
    ///
    /// # Errors
    /// Returns [`StageError::NoLoss`] if the results are not those of a loss.
    pub(in crate::stage::engine) fn forward_output(
        &self,
        outputs: Vec<DispatchTensor>,
    ) -> Result<ForwardOutput, StageError> {
        let payload = self.payload.filled(outputs.into_iter().map(AnyTensor::from_dispatch));
        if !self.is_loss {
            return Ok(ForwardOutput::Activations(payload));
        }
        let loss = LossPart::from_payload(payload).map_err(|_| StageError::NoLoss)?;
        Ok(ForwardOutput::Loss(Box::new(loss)))
    }
}
