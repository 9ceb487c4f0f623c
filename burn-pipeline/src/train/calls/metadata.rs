//! What crosses the boundaries of a pipeline's stages, learned before anything trains.

use crate::plan::StageId;
use crate::stage::{Batch, MetadataMode, Microbatches, StageMetadata, Validate};
use crate::train::calls::batch::admit;
use crate::train::control::command::{Answer, Command};
use crate::train::error::PipelineError;
use crate::train::pipeline::Pipeline;
use crate::train::step::metadata::learning_plan;
use std::sync::Arc;

impl Pipeline {
    /// What crosses the boundary of each stage, in model order, and how that is known: as all stages declared it
    /// (`StageBox::declare`), or else from a run on zeros of the shape of the batch's first microbatch. Nothing is
    /// trained by it; a stage that draws random numbers draws some. Where ranks are processes, of this process's stages.
    ///
    /// # Errors
    /// As [`Pipeline::step`]. Where some stages declared their forms and others did not, it also fails if a declared
    /// form is not the one found.
    pub fn metadata(&mut self, batch: Batch) -> Result<(MetadataMode, Vec<(StageId, StageMetadata)>), PipelineError> {
        let admitted = self.admitted(batch);
        let batch = self.agreed(admitted)?;
        self.learn(&batch)
    }

    /// A batch that can be trained on, cut.
    pub(crate) fn admitted(&self, batch: Batch) -> Result<Microbatches, PipelineError> {
        let batch = admit(batch, self.wanted_microbatches(), &self.facts)?;
        if !batch.has_target() {
            return Err(PipelineError::NoLoss { missing: "the target" });
        }
        if self.facts.iter().any(|f| f.stage.index() + 1 == self.placement.stages() && !f.has_loss) {
            return Err(PipelineError::NoLoss { missing: "the loss" });
        }
        Ok(batch)
    }

    /// Learns the metadata before the first step: where it is to be validated, or where every stage declared its forms, so
    /// that nothing need be run for them.
    pub(crate) fn learn_once(&mut self, batch: &Microbatches) -> Result<(), PipelineError> {
        if self.learned || self.validate == Validate::Off && !self.is_declared() {
            return Ok(());
        }
        self.learn(batch).map(drop)
    }

    /// Has every stage of every rank declared its forms?
    fn is_declared(&self) -> bool {
        self.facts.iter().all(|facts| facts.declared)
    }

    fn learn(&mut self, batch: &Microbatches) -> Result<(MetadataMode, Vec<(StageId, StageMetadata)>), PipelineError> {
        let plan = learning_plan(&self.placement, self.source.0.skips());
        let plan = Arc::new(plan.map_err(|error| PipelineError::Plan(Box::new(error)))?);
        let routes = self.placement.routes();
        let zeros: Arc<[Microbatches]> = match self.is_declared() {
            true => Arc::new([]),
            false => [batch.zeros(routes, 0)?, batch.zeros(routes, 1)?].into(),
        };
        let (mut mode, mut known) = (MetadataMode::Static, Vec::new());
        for answer in self.ask(&Command::Learn { plan, zeros })? {
            if let Answer::Learned(rank_mode, stages) = answer {
                mode = rank_mode;
                known.extend(stages);
            }
        }
        known.sort_by_key(|(stage, _)| *stage);
        known.dedup_by_key(|(stage, _)| *stage);
        self.learned = true;
        tracing::info!(?mode, stages = known.len(), "stage metadata known");
        Ok((mode, known))
    }
}
