//! What could run instead of what runs, and how both change places at a step boundary.
//!
//! 1. Where only the plan differs, plans change places. Ranks in processes compare them before.
//! 2. Where stages differ (their cut, places, recomputation, or whether their backward is split), the others are built beside
//!    those that run, and weights and optimizer state go from one to the other through a checkpoint
//!    ([`Pipeline::exchange`]). So each stage is built and captured once, however often both take turns.

use super::costs::Costs;
use super::decision::AutoError;
use crate::cost::LinkCosts;
use crate::plan::{CheckedPlan, Plan};
use crate::planner::{Candidate, Strategy};
use crate::schedule::{Schedule, Size, by_name};
use crate::train::checkpoint::Checkpoints;
use crate::train::control::Exchange;
use crate::train::error::PipelineError;
use crate::train::pipeline::Pipeline;
use crate::train::plans::{Plans, Source, fingerprint, split_stages};
use crate::train::setup::{Builder, Standby};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What could run.
#[derive(Clone, Debug)]
pub(super) struct Contender {
    pub(super) source: Source,
    /// How its stages are built.
    pub(super) builder: Builder,
    pub(super) name: String,
    /// Predicted seconds of a pass.
    pub(super) seconds: f64,
}

impl Contender {
    /// A candidate of the planner; its plan is given, or its family builds it.
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
            builder.skips = candidate.partition.profile(layers, LinkCosts::default())?.skips().to_vec();
            builder.cut = Some(candidate.partition.clone());
        }
        let size = Size { ranks, chunks: candidate.chunks, microbatches: candidate.microbatches };
        let source = source(candidate, plan.map(CheckedPlan::plan), size)?;
        Ok(Self { source, builder, name: candidate.to_string(), seconds: candidate.seconds })
    }
}

/// The candidate's family, if the family builds exactly this plan, so that larger batches can be run too; else the plan
/// itself.
fn source(candidate: &Candidate, plan: Option<&Plan>, size: Size) -> Result<Source, AutoError> {
    let builds_it = |family: &dyn Schedule| {
        let Some(plan) = plan else { return true };
        let built = family.build(size).ok().and_then(|built| built.with_skips(plan.skips().to_vec()).ok());
        built.and_then(|built| built.with_transfers().ok()).is_some_and(|built| built.rows() == plan.rows())
    };
    let family = match &candidate.strategy {
        Strategy::Family(name) => by_name(name).ok().filter(|family| builds_it(family.as_ref())),
        _ => None,
    };
    match (family, plan) {
        (None, Some(plan)) => Ok(Source::Chosen(Arc::new(plan.clone()))),
        (Some(family), _) => Ok(Source::Schedule(Arc::from(family), size)),
        (None, None) => Ok(Source::Schedule(Arc::from(by_name("1F1B").map_err(crate::train::BuildError::from)?), size)),
    }
}

/// A contender that is ready to run, or what ran before it.
#[derive(Debug)]
pub(super) enum Ready {
    /// The same stages run it.
    Plans(Plans),
    /// Its stages stand by.
    Stages(Box<Standby>),
}

impl Ready {
    /// Builds what a contender needs beside what runs.
    pub(super) fn new(
        pipeline: &mut Pipeline,
        running: &Contender,
        next: &Contender,
        stages_move: bool,
    ) -> Result<Self, AutoError> {
        let mut plans = pipeline.plans.moved(next.source.clone(), &next.builder.skips)?;
        let plan = plans.current()?;
        same_everywhere(pipeline, plan.plan())?;
        let splits = split_stages(plan.plan()) == split_stages(pipeline.plans.current()?.plan());
        let builders = (&running.builder, &next.builder);
        let alike = (&builders.0.cut, &builders.0.recomputing) == (&builders.1.cut, &builders.1.recomputing);
        if !stages_move || (splits && alike && plans.placement() == pipeline.placement()) {
            return Ok(Self::Plans(pipeline.plans.with_source(next.source.clone())?));
        }
        Ok(Self::Stages(Box::new(pipeline.stand_by(&next.builder, next.source.clone())?)))
    }

    /// Changes places with what runs.
    pub(super) fn exchange(&mut self, pipeline: &mut Pipeline, folder: &Folder) -> Result<(), AutoError> {
        match self {
            Self::Plans(plans) => std::mem::swap(plans, &mut pipeline.plans),
            Self::Stages(standby) => pipeline.change_places(standby, &Checkpoints::new(&folder.path).keep(1))?,
        }
        Ok(())
    }

    /// Drops it.
    pub(super) fn dismiss(self, pipeline: &mut Pipeline) -> Result<(), AutoError> {
        match self {
            Self::Plans(_) => Ok(()),
            Self::Stages(_) => Ok(pipeline.dismiss()?),
        }
    }
}

/// Ranks in processes compare what they chose.
fn same_everywhere(pipeline: &mut Pipeline, plan: &Plan) -> Result<(), AutoError> {
    let own = fingerprint(plan);
    let chosen = pipeline.ask(Exchange(own.clone()))?;
    match chosen.iter().position(|theirs| *theirs != own) {
        Some(rank) => Err(PipelineError::Diverged { rank, theirs: chosen[rank].clone(), others: own }.into()),
        None => Ok(()),
    }
}

/// A folder for stages that move, removed when it is dropped by the process that made it.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    made_here: bool,
    /// Do all ranks see it?
    pub(super) is_shared: bool,
}

impl Folder {
    /// A folder of its own inside `root`, the same on all processes.
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
