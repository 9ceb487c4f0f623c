//! What crosses stage boundaries, looked at: to learn its forms, or to compare them with what is known.

use super::ExecuteError;
use super::interpreter::Executor;
use crate::link::{Expected, Header};
use crate::plan::{MicrobatchTask, StageId};
use crate::stage::{Payload, PayloadSpec, SpecMismatch, StageError, StageMetadata, StagePort};
use std::collections::BTreeMap;

/// What an executor does with the forms that it sees in training.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum SpecCheck {
    /// Nothing.
    #[default]
    Off,
    /// Notes them.
    Record(RecordedSpecs),
    /// Compares them: an error names the first tensor that differs. What is not known may be anything.
    Compare(BTreeMap<StageId, StageMetadata>),
}

/// What was seen.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecordedSpecs {
    /// The forms at the boundaries of this rank's stages.
    pub stages: BTreeMap<StageId, StageMetadata>,
    /// The first message of each kind that this rank has sent.
    pub sent: Vec<Expected>,
}

impl RecordedSpecs {
    fn note_sent(&mut self, expected: Expected) {
        let Expected { to, header, .. } = &expected;
        let same = |other: &Expected| {
            (other.to, other.header.stage, other.header.direction) == (*to, header.stage, header.direction)
        };
        if !self.sent.iter().any(same) {
            self.sent.push(expected);
        }
    }
}

impl SpecCheck {
    /// Looks at what is at a port of a stage.
    fn look(&mut self, stage: StageId, port: StagePort, payload: &Payload) -> Result<(), StageError> {
        let differs = |SpecMismatch { tensor, expected, got }| StageError::Metadata { port, tensor, expected, got };
        match self {
            SpecCheck::Off => Ok(()),
            SpecCheck::Record(known) => {
                let noted = known.stages.entry(stage).or_default().note(port, PayloadSpec::of_payload(payload));
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

impl Executor {
    /// Notes what is about to be sent, where that was asked for.
    pub(super) fn note_sent(&mut self, to: usize, header: Header, payload: &Payload) {
        let from = self.rank();
        if let SpecCheck::Record(learned) = self.spec_check_mut() {
            learned.note_sent(Expected { from, to, header, form: PayloadSpec::of_payload(payload) });
        }
    }

    /// Looks at what is at a port of a task's stage, where that was asked for.
    pub(super) fn inspect(
        &mut self,
        task: MicrobatchTask,
        port: StagePort,
        payload: impl FnOnce() -> Payload,
    ) -> Result<(), ExecuteError> {
        if self.spec_check() == &SpecCheck::Off {
            return Ok(());
        }
        let looked = self.spec_check_mut().look(task.stage(), port, &payload());
        looked.map_err(|source| self.stage_error(task, source))
    }
}
