//! What ranks measured while they trained a batch: exchanged between processes, and added to the report.

use crate::execute::ExecuteError;
use crate::train::report::StepReport;
use crate::train::step::{BatchOutcome, Rank};
use burn_pipeline_plan::plan::StageId;
use std::collections::BTreeMap;

/// Gives every rank what all ranks measured.
pub(super) fn gather_measured(rank: &mut Rank, own: &mut BatchOutcome) -> Result<(), ExecuteError> {
    let (me, mut table) = (rank.number(), rank.executor.gather(&own.measured)?);
    for (peer, row) in table.iter_mut().enumerate() {
        for measured in row {
            let stages = measured.message_bytes.keys().chain(measured.skip_bytes.keys());
            let stages = stages.chain(measured.activations.keys()).copied();
            ExecuteError::refuse_unknown(me, peer, &rank.placement, stages)?;
            measured.events.iter_mut().for_each(|event| event.rank = peer);
        }
    }
    own.measured = table.into_iter().flatten().collect();
    Ok(())
}

impl StepReport {
    /// Adds the outcome of a rank; ranks come in order.
    pub(super) fn add(&mut self, outcome: BatchOutcome) {
        let BatchOutcome { run, measured, loss, non_finite, scale } = outcome;
        (self.loss, self.skipped, self.losses, self.observed) = (loss, non_finite, run.losses, run.observed);
        self.outputs.extend(run.outputs);
        if let Some(of_batch) = &mut self.of_batch {
            of_batch.computed.extend(run.of_batch);
            of_batch.scale = scale;
        }
        for measured in measured {
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
}

/// Keeps the larger number of each stage.
fn raise(largest: &mut [usize], bytes: BTreeMap<StageId, usize>) {
    bytes.into_iter().for_each(|(stage, bytes)| largest[stage.index()] = bytes.max(largest[stage.index()]));
}
