//! Alternatives to the running plan, and how to switch at a step boundary.
//!
//! 1. If only the plan differs, plans are swapped. Ranks in processes compare them first.
//! 2. If stages differ (their cut, placement, recomputation, or whether their backward is split), the new stages are
//!    built beside the running ones, and weights and optimizer state are moved through a checkpoint
//!    ([`Pipeline::change_places`]). So each stage is built and captured only once, however often the two take turns.

use super::costs::Costs;
use super::decision::AutoError;
use super::standby::Standby;
use crate::train::checkpoint::Checkpoints;
use crate::train::control::Exchange;
use crate::train::pipeline::Pipeline;
use crate::train::plans::{Plans, Source, fingerprint, split_stages};
use crate::train::setup::Builder;
use burn_pipeline_plan::plan::{CheckedPlan, Plan, StageId};
use burn_pipeline_plan::planner::{Candidate, Strategy};
use burn_pipeline_plan::schedule::{Schedule, Size, by_name};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A plan that could run instead.
#[derive(Clone, Debug)]
pub(super) struct Contender {
    pub(super) source: Source,
    pub(super) builder: Builder,
    pub(super) name: String,
    /// Predicted seconds of a pass.
    pub(super) seconds: f64,
}

impl Contender {
    /// Makes a contender from a planner's candidate, with the given plan or the one that its schedule builds.
    pub(super) fn new(
        candidate: &Candidate,
        plan: Option<&CheckedPlan>,
        costs: &Costs,
        running: &Self,
        ranks: usize,
    ) -> Result<Self, AutoError> {
        let mut builder = running.builder.clone();
        builder.recomputing = candidate.recomputing.clone();
        if costs.cut.layers() > costs.cut.stages() {
            let layers = &costs.workloads[0].layers;
            builder.cut_with(candidate.partition.clone(), layers)?;
        }
        let size = Size { ranks, chunks: candidate.chunks, microbatches: candidate.microbatches };
        let source = source(candidate, plan.map(CheckedPlan::plan), size)?;
        Ok(Self { source, builder, name: candidate.to_string(), seconds: candidate.seconds })
    }
}

/// The candidate's schedule, if it builds exactly this plan, so that larger batches can run too; otherwise the plan
/// itself.
fn source(candidate: &Candidate, plan: Option<&Plan>, size: Size) -> Result<Source, AutoError> {
    let builds_it = |schedule: &dyn Schedule| {
        let Some(plan) = plan else { return true };
        let built = schedule.build(size).ok().and_then(|built| built.with_skips(plan.skips().to_vec()).ok());
        let built = built.and_then(|built| built.train_from(plan.first_trained()).ok());
        built.and_then(|built| built.with_transfers().ok()).is_some_and(|built| built.rows() == plan.rows())
    };
    let schedule = match &candidate.strategy {
        Strategy::Schedule(name) => by_name(name).ok().filter(|schedule| builds_it(schedule.as_ref())),
        _ => None,
    };
    match (schedule, plan) {
        (None, Some(plan)) => Ok(Source::Chosen(Arc::new(plan.clone()))),
        (Some(schedule), _) => Ok(Source::Schedule(Arc::from(schedule), size)),
        (None, None) => Ok(Source::Schedule(Arc::from(by_name("1F1B").map_err(crate::train::BuildError::from)?), size)),
    }
}

/// A contender that is ready to run, or the plan that ran before it.
#[derive(Debug)]
pub(super) enum Ready {
    /// Plans of the same stages.
    Plans(Plans),
    /// Other stages, on standby.
    Stages(Box<Standby>),
}

impl Ready {
    /// Builds what a contender needs, beside the running stages.
    pub(super) fn new(
        pipeline: &mut Pipeline,
        running: &Contender,
        next: &Contender,
        stages_move: bool,
    ) -> Result<Self, AutoError> {
        let skips = next.builder.skips_of(&next.source)?;
        let mut plans = pipeline.plans.moved(next.source.clone(), &skips)?;
        let plan = plans.current()?;
        pipeline.agree_on_text(fingerprint(plan.plan()))?;
        // A stage that does not split its backward in the running plan, because it is `W` alone or there is none, needs
        // no other engine.
        let running_plan = pipeline.plans.current()?;
        let first = running_plan.plan().first_trained();
        let split = |plan: &Plan| -> Vec<StageId> {
            split_stages(plan).into_iter().filter(|stage| first == 0 || stage.index() > first).collect()
        };
        let splits = split(plan.plan()) == split(running_plan.plan());
        let builders = (&running.builder, &next.builder);
        let alike = (&builders.0.cut, &builders.0.recomputing) == (&builders.1.cut, &builders.1.recomputing);
        if !stages_move || (splits && alike && plans.placement == *pipeline.placement()) {
            return Ok(Self::Plans(plans.in_place_of(&pipeline.plans)?));
        }
        Ok(Self::Stages(Box::new(pipeline.stand_by(&next.builder, plans)?)))
    }

    /// Swaps it with the running one.
    ///
    /// # Errors
    /// Returns [`AutoError::Replaced`] if a module was replaced: the plans that stand by train what was trained before.
    pub(super) fn exchange(&mut self, pipeline: &mut Pipeline, folder: &Folder) -> Result<(), AutoError> {
        pipeline.is_unchanged()?;
        match self {
            Self::Plans(plans) => std::mem::swap(plans, &mut pipeline.plans),
            Self::Stages(standby) => pipeline.change_places(standby, &Checkpoints::new(&folder.path).keep(1))?,
        }
        Ok(())
    }

    pub(super) fn dismiss(self, pipeline: &mut Pipeline) -> Result<(), AutoError> {
        match self {
            Self::Plans(_) => Ok(()),
            Self::Stages(_) => Ok(pipeline.dismiss()?),
        }
    }
}

/// A temporary folder for stages that move. The process that created it removes it on drop.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    made_here: bool,
    /// True if all ranks see it.
    pub(super) is_shared: bool,
}

impl Folder {
    /// Creates a unique folder inside `root`, the same for all processes.
    pub(super) fn new(pipeline: &mut Pipeline, root: Option<&Path>) -> Result<Self, AutoError> {
        static FOLDERS: AtomicU64 = AtomicU64::new(0);
        let root = root.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let name = format!("burn-pipeline-{}-{}", std::process::id(), FOLDERS.fetch_add(1, Ordering::Relaxed));
        let (own, made_here) = (root.join(name), pipeline.ranks.holds(0));
        let made = if made_here { std::fs::create_dir_all(&own) } else { Ok(()) };
        let made = made.map_err(|error| AutoError::Folder { folder: own.clone(), message: error.to_string() });
        pipeline.agree_on_success(made)?;
        let first = pipeline.ask(Exchange(own.display().to_string()))?.into_iter().next();
        let path = first.map_or(own, PathBuf::from);
        let mut folder = Self { is_shared: path.is_dir(), path, made_here };
        folder.is_shared = pipeline.ask(Exchange(folder.is_shared))?.into_iter().all(|sees| sees);
        Ok(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let (true, Err(error)) = (self.made_here, std::fs::remove_dir_all(&self.path)) {
            tracing::warn!(folder = %self.path.display(), %error, "a folder is left behind");
        }
    }
}
