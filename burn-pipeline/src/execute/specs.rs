//! Recording or comparing the tensor specs that cross stage boundaries in training.

use crate::payload::{Payload, PayloadSpec, SpecMismatch, StageMetadata, StagePort};
use crate::stage::StageError;
use burn_pipeline_plan::plan::StageId;
use std::collections::BTreeMap;

/// What the executor does with the tensor specs that cross stage boundaries in training.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum SpecCheck {
    /// Nothing.
    #[default]
    Off,
    /// Records them.
    Record(BTreeMap<StageId, StageMetadata>),
    /// Compares them with known metadata; the error names the first tensor that differs. Ports without metadata are
    /// not checked.
    Compare(BTreeMap<StageId, StageMetadata>),
}

impl SpecCheck {
    /// Records or compares the payload at a port of a stage.
    pub(super) fn check(&mut self, stage: StageId, port: StagePort, payload: &Payload) -> Result<(), StageError> {
        let differs = |SpecMismatch { tensor, expected, got }| StageError::Metadata { port, tensor, expected, got };
        match self {
            SpecCheck::Off => Ok(()),
            SpecCheck::Record(recorded) => {
                let noted = recorded.entry(stage).or_default().note(port, PayloadSpec::of_payload(payload));
                noted.map_err(|(expected, got)| {
                    let same = SpecMismatch { tensor: None, expected: expected.to_string(), got: got.to_string() };
                    differs(got.mismatch(&expected).unwrap_or(same))
                })
            }
            SpecCheck::Compare(known) => {
                let Some(expected) = known.get(&stage).and_then(|known| known.at(port)) else { return Ok(()) };
                PayloadSpec::of_payload(payload).mismatch(expected).map_or(Ok(()), |mismatch| Err(differs(mismatch)))
            }
        }
    }
}
