//! How ranks in processes exchange the outcome of a batch, and how a report is made of all of them.

use crate::execute::{ExecuteError, RankOutcome};
use crate::train::report::StepReport;
use crate::train::step::{BatchOutcome, Rank};
use burn_pipeline_plan::plan::StageId;
use std::collections::BTreeMap;

/// Gives every rank the outcomes of all ranks: its own unchanged, of others what they measured. Outputs and gradients
/// of the batch are left out, since they are sent only to ranks that want them.
pub(super) fn gather_outcomes(rank: &mut Rank, own: BatchOutcome) -> Result<Vec<BatchOutcome>, ExecuteError> {
    let me = rank.number();
    let mut table = rank.executor().gather(&own.run.measured)?;
    for (peer, measured) in table.iter_mut().enumerate() {
        let stages = measured.message_bytes.keys().chain(measured.skip_bytes.keys());
        let stages = stages.chain(measured.activations.keys()).copied();
        ExecuteError::refuse_unknown(me, peer, rank.placement(), stages)?;
        measured.events.iter_mut().for_each(|event| event.rank = peer);
    }
    let mut outcomes: Vec<BatchOutcome> = Vec::new();
    for measured in table {
        let (losses, observed) = (own.run.losses.clone(), own.run.observed.clone());
        let run = RankOutcome { losses, observed, measured, ..RankOutcome::default() };
        let (loss, non_finite, scale) = (own.loss, own.non_finite.clone(), own.scale);
        outcomes.push(BatchOutcome { run, loss, non_finite, scale });
    }
    if let Some(place) = outcomes.get_mut(me) {
        *place = own;
    }
    Ok(outcomes)
}

impl StepReport {
    /// Adds one rank's report; ranks come in order.
    pub(super) fn add(&mut self, outcome: BatchOutcome) {
        let BatchOutcome { run, loss, non_finite, scale } = outcome;
        (self.loss, self.skipped, self.losses, self.observed) = (loss, non_finite, run.losses, run.observed);
        self.outputs.extend(run.outputs);
        if let Some(of_batch) = &mut self.of_batch {
            of_batch.computed.extend(run.of_batch);
            of_batch.scale = scale;
        }
        let measured = run.measured;
        self.peak_held.push(measured.peak_held);
        self.peak_held_bytes.push(measured.peak_held_bytes);
        for (stage, bytes) in measured.activations {
            let largest = &mut self.activations[stage.index()];
            *largest = Some(bytes).max(*largest);
        }
        self.timeline.events.extend(measured.events);
        raise(&mut self.message_bytes, measured.message_bytes);
        raise(&mut self.skip_bytes, measured.skip_bytes);
    }
}

/// Keeps the larger number of each stage.
fn raise(largest: &mut [usize], bytes: BTreeMap<StageId, usize>) {
    bytes.into_iter().for_each(|(stage, bytes)| largest[stage.index()] = bytes.max(largest[stage.index()]));
}
