//! The specs at a pipeline's stage boundaries, learned before training.

use super::read::in_model_order;
use crate::execute::ExecuteError;
use crate::payload::StageMetadata;
use crate::stage::{Batch, Microbatches};
use crate::train::control::Command;
use crate::train::error::PipelineError;
use crate::train::features::Feature;
use crate::train::pipeline::Pipeline;
use crate::train::step::{Rank, metadata_plan};
use burn_pipeline_plan::plan::{CheckedPlan, StageId};
use std::time::Instant;

type Metadata = Vec<(StageId, StageMetadata)>;

impl Pipeline {
    /// Returns what crosses the boundary of each stage, in model order: as declared, if all stages did
    /// (`StageBox::declare`); otherwise as found in a run on zeros of the shape of the batch's first microbatch. It
    /// trains nothing, but a stage that draws random numbers draws some. When ranks are processes, it returns this
    /// process's stages.
    ///
    /// # Errors
    /// Same as [`Pipeline::step`]. If only some stages declared their specs, it also fails if one differs from what was
    /// found.
    pub fn metadata(&mut self, batch: Batch) -> Result<Metadata, PipelineError> {
        self.goes_with(Feature::Metadata)?;
        let admitted = self.stages.admit_training(batch, self.plans.microbatches(), self.placement().ranks());
        let batch = self.admit(admitted)?;
        self.learn_metadata(&batch)
    }

    pub(super) fn learn_metadata(&mut self, batch: &Microbatches) -> Result<Metadata, PipelineError> {
        let plan = metadata_plan(self.placement(), &self.plans.skips, self.stages.first_trained());
        let plan = plan.map_err(|error| PipelineError::Plan(Box::new(error)))?;
        let routes = self.placement().routes();
        let declared = self.stages.facts.iter().all(|facts| facts.declared);
        let zeros = match declared {
            true => Vec::new(),
            false => vec![batch.zeros(routes, 0)?, batch.zeros(routes, 1)?],
        };
        let seed = self.training.batch_seed();
        let stages = in_model_order(self.ask(LearnMetadata { plan, zeros, seed })?);
        self.learns_metadata = false;
        tracing::info!(declared, stages = stages.len(), "stage metadata known");
        Ok(stages)
    }
}

/// Learns what crosses the boundaries of each rank's stages.
struct LearnMetadata {
    plan: CheckedPlan,
    zeros: Vec<Microbatches>,
    /// The seed of the next batch's forwards: some stages draw only with one.
    seed: Option<u64>,
}

impl Command for LearnMetadata {
    type Reply = Metadata;
    const NAME: &'static str = "learning the stages' metadata";
    const RUNS_ON_WEIGHTS: bool = true;

    fn run(&self, rank: &mut Rank, _: Instant) -> Result<Metadata, ExecuteError> {
        rank.draw_from(self.seed);
        Ok(rank.learn_metadata(&self.plan, &self.zeros)?.into_iter().collect())
    }
}
