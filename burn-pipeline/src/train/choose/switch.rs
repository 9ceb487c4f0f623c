//! Running another schedule from the next step on.
//!
//! 1. Ranks of one process: the pipeline is saved into a folder of its own; a new one is built and loads it. So weights and
//!    optimizer state move to where their stages now are. The old pipeline ends only then.
//! 2. Ranks in processes keep the placement, so nothing moves. They compare the plan, and then run it.

use super::decision::AutoError;
use crate::train::checkpoint::Checkpoints;
use crate::train::control::Exchange;
use crate::train::error::PipelineError;
use crate::train::pipeline::Pipeline;
use crate::train::plans::{Source, fingerprint};
use crate::train::setup::Builder;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// Has a pipeline run something else. On an error it goes on as before.
pub(super) fn switch(pipeline: &mut Pipeline, builder: &Builder, source: Source) -> Result<(), AutoError> {
    if pipeline.ranks.are_processes() {
        return replace_plan(pipeline, source);
    }
    if !pipeline.is_as_built {
        return Err(AutoError::Replaced);
    }
    let folder = Folder::new();
    let checkpoints = Checkpoints::new(&folder.0);
    pipeline.save(&checkpoints, &())?;
    let mut next = builder.clone().source(source).build()?;
    next.load(&checkpoints.latest()?)?;
    *pipeline = next;
    Ok(())
}

/// Runs something else over the same placement, if all ranks chose the same.
fn replace_plan(pipeline: &mut Pipeline, source: Source) -> Result<(), AutoError> {
    let mut plans = pipeline.plans.with_source(source)?;
    let own = fingerprint(plans.current()?.plan());
    let chosen = pipeline.ranks.ask(Exchange(own.clone()))?;
    if let Some(rank) = chosen.iter().position(|theirs| *theirs != own) {
        return Err(PipelineError::Diverged { rank, theirs: chosen[rank].clone(), others: own }.into());
    }
    pipeline.plans = plans;
    Ok(())
}

/// A folder for one switch, removed when it is over.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static SWITCHES: AtomicU64 = AtomicU64::new(0);
        let switch = SWITCHES.fetch_add(1, Ordering::Relaxed);
        Self(std::env::temp_dir().join(format!("burn-pipeline-switch-{}-{switch}", std::process::id())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(folder = %self.0.display(), %error, "a folder is left behind");
        }
    }
}
