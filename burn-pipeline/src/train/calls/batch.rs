//! What a batch must hold before any rank hears of it.
//!
//! Guarantees: a batch that cannot be cut, lacks what a stage reads, or is of another form than stages and loss
//! take is refused here, so that a refusal costs nothing: no rank ran anything, and gathered gradients stay.

use crate::stage::{Batch, Microbatches, StageError};
use crate::train::control::command::StageFacts;
use crate::train::error::PipelineError;

/// Cuts the batch into at most `wanted` microbatches, and makes sure that it holds what stages take.
pub(crate) fn admit(batch: Batch, wanted: usize, stages: &[StageFacts]) -> Result<Microbatches, PipelineError> {
    let batch = batch.cut(wanted)?;
    for (facts, whole) in stages.iter().flat_map(|facts| batch.wholes().map(move |whole| (facts, whole))) {
        fits(whole, facts)?;
    }
    if batch.len() < wanted {
        tracing::warn!(samples = batch.samples(), wanted, "fewer samples than microbatches: running one a sample");
    }
    Ok(batch)
}

fn fits(batch: &Batch, facts: &StageFacts) -> Result<(), PipelineError> {
    let refused = |source| PipelineError::Refused { stage: facts.stage, source };
    if facts.stage.index() == 0 {
        (facts.takes.input)(batch.whole_input().clone()).map_err(|source| refused(StageError::Input(source)))?;
    }
    let extra = batch.whole_extra(facts.stage.index(), &facts.extras)?;
    (facts.takes.extra)(extra).map_err(|source| refused(StageError::Extra(source)))?;
    if let (Some(takes), Some(target)) = (facts.takes.target, batch.whole_target()) {
        takes(target.clone()).map_err(|source| refused(StageError::Target(source)))?;
    }
    Ok(())
}
