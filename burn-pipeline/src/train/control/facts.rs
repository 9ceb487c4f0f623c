//! What ranks in other processes are told of a batch and of stages: the parts of the runtime's types that can be
//! written down.

use crate::plan::StageId;
use crate::stage::{ActivationBytes, BatchChecks};
use crate::trace::Event;
use crate::train::control::command::StageFacts;
use crate::train::step::rank::BatchOutcome;
use serde::{Deserialize, Serialize};

/// A stage of the placement by replica and index; `None` if there can be no such stage.
pub(crate) fn stage((replica, index): (usize, usize)) -> Option<StageId> {
    (replica < 2 && index <= usize::from(u16::MAX)).then(|| StageId::in_replica(replica, index))
}

fn numbers(stage: StageId) -> (usize, usize) {
    (stage.replica(), stage.index())
}

/// What a rank's batch gave, but for its outputs, which ranks that asked have, and for the loss and the observed
/// numbers, which every rank has.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SharedOutcome {
    events: Vec<(String, f64, f64)>,
    message_bytes: Vec<((usize, usize), usize)>,
    skip_bytes: Vec<((usize, usize), usize)>,
    peak_held: usize,
    peak_held_bytes: Option<usize>,
    activations: Vec<((usize, usize), [usize; 3])>,
}

impl SharedOutcome {
    pub(crate) fn of(outcome: &BatchOutcome) -> Self {
        let event = |event: &Event| (event.action.to_string(), event.start, event.end);
        let activation = |(&stage, bytes): (&StageId, &ActivationBytes)| {
            (numbers(stage), [bytes.after_forward, bytes.after_input, bytes.recomputed])
        };
        Self {
            events: outcome.events.iter().map(event).collect(),
            message_bytes: outcome.message_bytes.iter().map(|(&stage, &bytes)| (numbers(stage), bytes)).collect(),
            skip_bytes: outcome.skip_bytes.iter().map(|(&stage, &bytes)| (numbers(stage), bytes)).collect(),
            peak_held: outcome.peak_held,
            peak_held_bytes: outcome.peak_held_bytes,
            activations: outcome.activations.iter().map(activation).collect(),
        }
    }

    pub(crate) fn outcome(self, rank: usize, loss: f64, observed: Vec<Vec<f64>>) -> BatchOutcome {
        let event =
            |(action, start, end): (String, f64, f64)| Some(Event { rank, action: action.parse().ok()?, start, end });
        let bytes = |(place, bytes)| Some((stage(place)?, bytes));
        let activation = |(place, [after_forward, after_input, recomputed]): ((usize, usize), [usize; 3])| {
            Some((stage(place)?, ActivationBytes { after_forward, after_input, recomputed }))
        };
        BatchOutcome {
            loss,
            observed,
            outputs: Vec::new(),
            events: self.events.into_iter().filter_map(event).collect(),
            message_bytes: self.message_bytes.into_iter().filter_map(bytes).collect(),
            skip_bytes: self.skip_bytes.into_iter().filter_map(bytes).collect(),
            peak_held: self.peak_held,
            peak_held_bytes: self.peak_held_bytes,
            activations: self.activations.into_iter().filter_map(activation).collect(),
        }
    }
}

/// What a rank tells of a stage that it holds.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SharedFacts {
    replica: usize,
    /// The stage, in the model.
    pub(crate) index: usize,
    has_loss: bool,
    declared: bool,
    weight_bytes: usize,
    /// Element types and shapes, in visiting order.
    pub(crate) parameters: String,
    /// Its parameters: path in the stage, and name in the whole model.
    names: Vec<(String, String)>,
}

impl SharedFacts {
    pub(crate) fn of(facts: &StageFacts) -> Self {
        let StageFacts { stage, has_loss, declared, weight_bytes, .. } = *facts;
        let (replica, index) = numbers(stage);
        let (parameters, names) = (facts.parameters.clone(), facts.names.clone());
        Self { replica, index, has_loss, declared, weight_bytes, parameters, names }
    }

    /// The facts as another process sees them: whether a batch fits the stage is for its holder to say.
    pub(crate) fn foreign(&self) -> Option<StageFacts> {
        Some(StageFacts {
            stage: stage((self.replica, self.index))?,
            extras: Vec::new(),
            has_loss: self.has_loss,
            declared: self.declared,
            takes: BatchChecks { input: |_| Ok(()), extra: |_| Ok(()), target: None },
            weight_bytes: self.weight_bytes,
            parameters: self.parameters.clone(),
            names: self.names.clone(),
        })
    }
}
