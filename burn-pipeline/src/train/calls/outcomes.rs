//! How ranks in processes exchange the outcome of a batch.

use crate::execute::{ExecuteError, RankOutcome};
use crate::train::step::{BatchOutcome, Rank};

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
