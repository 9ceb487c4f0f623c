//! What one rank's run returns.

use crate::payload::{AnyTensor, Payload};
use crate::stage::ActivationBytes;
use burn_pipeline_plan::plan::StageId;
use burn_pipeline_plan::trace::Event;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One microbatch's loss, read from the device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MicrobatchLoss {
    /// The microbatch's index in the whole batch.
    pub index: usize,
    /// The rank that computed it.
    pub rank: usize,
    /// The last stage of its route, which computed it. Its route is [`StageId::route`].
    pub stage: StageId,
    /// The value that the stage's loss function returned.
    pub loss: f64,
    /// Its weight in the batch's loss: the number of samples, 1, or the weight that the loss function returned.
    pub weight: f64,
}

/// Gradients of a batch that one stage computed for one microbatch: those of the input's tensors (without a name), or
/// of an extra's. A tensor that has none is `None`.
pub(crate) type OfBatch = Vec<(Option<String>, Vec<Option<AnyTensor>>)>;

/// The result of one rank's run.
#[derive(Debug, Default)]
pub(crate) struct RankOutcome {
    /// Losses of the whole batch in the order of microbatches, the same on every rank.
    pub losses: Vec<MicrobatchLoss>,
    /// The numbers that the loss function observed, by microbatch, the same on every rank.
    pub observed: Vec<Vec<f64>>,
    /// Outputs of the last stage with the index of their microbatch, after an evaluation that ended on this rank,
    /// or a step whose outputs were requested.
    pub outputs: Vec<(usize, Payload)>,
    /// Gradients of the batch by stage and microbatch, if they are wanted; each payload is an [`OfBatch`].
    pub of_batch: Vec<((StageId, usize), Payload)>,
    pub measured: Measured,
}

/// What one rank measured in a run.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// The timeline of the row, by the step's clock. Ranks that get it know the rank from its place.
    #[serde(with = "as_text")]
    pub events: Vec<Event>,
    /// Bytes of each stage's output to the next stage, for its largest microbatch.
    pub message_bytes: BTreeMap<StageId, usize>,
    /// Bytes of the largest value that each stage sent along a skip edge.
    pub skip_bytes: BTreeMap<StageId, usize>,
    /// The largest number of microbatches held at once between forward and the end of backward, over all stages.
    pub peak_held: usize,
    /// The most bytes held at once between forward and the end of backward, without parameters; `None` if the engine
    /// of some stage cannot measure them.
    pub peak_held_bytes: Option<usize>,
    /// The activation bytes of each stage's largest microbatch, if its engine knows.
    pub activations: BTreeMap<StageId, ActivationBytes>,
}

/// Sends events as the text of their actions, with start and end.
mod as_text {
    use super::Event;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(events: &[Event], to: S) -> Result<S::Ok, S::Error> {
        let rows: Vec<(String, f64, f64)> =
            events.iter().map(|event| (event.action.to_string(), event.start, event.end)).collect();
        rows.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Event>, D::Error> {
        let rows = Vec::<(String, f64, f64)>::deserialize(from)?.into_iter();
        let event = |(action, start, end): (String, f64, f64)| {
            Ok(Event { rank: 0, action: action.parse().map_err(D::Error::custom)?, start, end })
        };
        rows.map(event).collect()
    }
}
