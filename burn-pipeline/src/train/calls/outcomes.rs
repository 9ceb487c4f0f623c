//! How ranks in processes exchange the outcome of a batch.

use crate::execute::ExecuteError;
use crate::stage::ActivationBytes;
use crate::train::control::gather_all;
use crate::train::step::{BatchOutcome, Rank};
use burn_pipeline_plan::plan::StageId;
use burn_pipeline_plan::trace::Event;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The part of an outcome that differs between ranks. Outputs and gradients of the batch are left out: they are sent
/// only to ranks that want them.
#[derive(Debug, Serialize, Deserialize)]
struct RankPart {
    /// Actions as text, with their start and end.
    events: Vec<(String, f64, f64)>,
    message_bytes: BTreeMap<StageId, usize>,
    skip_bytes: BTreeMap<StageId, usize>,
    peak_held: usize,
    peak_held_bytes: Option<usize>,
    /// Bytes after `F`, after `I`, and recomputed; then the peaks.
    activations: BTreeMap<StageId, ([usize; 3], Option<[usize; 4]>)>,
}

impl RankPart {
    fn of(outcome: &BatchOutcome) -> Self {
        let event = |event: &Event| (event.action.to_string(), event.start, event.end);
        let bytes = |bytes: &ActivationBytes| ([bytes.after_forward, bytes.after_input, bytes.recomputed], bytes.peaks);
        Self {
            events: outcome.events.iter().map(event).collect(),
            message_bytes: outcome.message_bytes.clone(),
            skip_bytes: outcome.skip_bytes.clone(),
            peak_held: outcome.peak_held,
            peak_held_bytes: outcome.peak_held_bytes,
            activations: outcome.activations.iter().map(|(&stage, held)| (stage, bytes(held))).collect(),
        }
    }

    fn outcome(self, rank: usize, own: &BatchOutcome) -> BatchOutcome {
        let Self { events, message_bytes, skip_bytes, peak_held, peak_held_bytes, activations } = self;
        let event =
            |(action, start, end): (String, f64, f64)| Some(Event { rank, action: action.parse().ok()?, start, end });
        let bytes = |([after_forward, after_input, recomputed], peaks): ([usize; 3], Option<[usize; 4]>)| {
            ActivationBytes { after_forward, after_input, recomputed, peaks }
        };
        BatchOutcome {
            loss: own.loss,
            non_finite: own.non_finite.clone(),
            losses: own.losses.clone(),
            observed: own.observed.clone(),
            outputs: Vec::new(),
            of_batch: Vec::new(),
            scale: own.scale,
            events: events.into_iter().filter_map(event).collect(),
            message_bytes,
            skip_bytes,
            peak_held,
            peak_held_bytes,
            activations: activations.into_iter().map(|(stage, held)| (stage, bytes(held))).collect(),
        }
    }
}

/// Gives every rank the outcomes of all ranks. A rank's own outcome keeps its outputs and its gradients of
/// the batch.
pub(super) fn gather_outcomes(rank: &mut Rank, own: BatchOutcome) -> Result<Vec<BatchOutcome>, ExecuteError> {
    let (timeout, me) = (rank.executor().timeout(), rank.number());
    let table = gather_all(rank.executor().link(), &RankPart::of(&own), timeout)?;
    for (peer, RankPart { message_bytes, skip_bytes, activations, .. }) in table.iter().enumerate() {
        let stages = message_bytes.keys().chain(skip_bytes.keys()).chain(activations.keys()).copied();
        ExecuteError::refuse_unknown(me, peer, rank.placement(), stages)?;
    }
    let outcome = |(rank, part): (usize, RankPart)| part.outcome(rank, &own);
    let mut outcomes: Vec<BatchOutcome> = table.into_iter().enumerate().map(outcome).collect();
    if let Some(place) = outcomes.get_mut(me) {
        *place = own;
    }
    Ok(outcomes)
}
