//! Loads a checkpoint into a pipeline, saved with any cut, ranks and schedule; or pretrained weights.
//!
//! Guarantees: nothing changes unless every rank found everything that its stages need. A panic in the user's code
//! (stores, adapters, names) fails the call alone. Copies of a tied parameter get equal values. Members of a
//! tensor-parallel group read whole weights and keep their pieces, one weight at a time.
//!
//! 1. Every rank reads what its stages need, compares it with them, and keeps it aside ([`Read`], [`ReadPretrained`]).
//! 2. The caller checks that everything stored was used by some stage.
//! 3. Every rank adopts what it kept aside, or discards it ([`Finish`]).

use super::error::CheckpointError;
use super::pretrained::{Fit, Opened, Pretrained};
use super::scales::scales;
use super::stored::{Checkpoint, Contents, Wanted, names_to_find};
use super::types::refuse_infinite_copies;
use crate::execute::ExecuteError;
use crate::link::Activity;
use crate::stage::{ErasedStage, StageState};
use crate::train::control::{Call, Command, gather_results};
use crate::train::pipeline::Pipeline;
use crate::train::step::{Rank, caught};
use burn_pipeline_plan::plan::StageId;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Instant;

impl Pipeline {
    /// Loads a checkpoint's weights, optimizer state and progress, saved with any cut, and drops accumulated gradients.
    /// Settings (the optimizer's, clipping, the loss's reduction) stay those of this pipeline. The seed of forwards
    /// ([`Builder::seed`](crate::Builder::seed)) becomes the checkpoint's, if it has one. When ranks are processes, all
    /// make the call with the same checkpoint.
    ///
    /// Half precision is widened to f32, with its optimizer state, for a pipeline with masters
    /// ([`Builder::precision`](crate::Builder::precision)); f32 is rounded once, to nearest even, for one whose
    /// parameters are half. With a precision, a frozen half parameter that was saved in f32 keeps it as its master if
    /// the optimizer kept state for it, or if a rule ([`Stage::after_step`](crate::stage::Stage::after_step)) may step
    /// it: in a list, one of a layer with a rule; in another stage, any, unless a step has shown that it has no rule.
    ///
    /// # Errors
    /// Returns [`CheckpointError`] if names, shapes or other element types do not fit, a type cannot hold a stored
    /// value, saved copies of a tied parameter differ, optimizer state would be rounded, or a file is missing or
    /// damaged; the pipeline is unchanged. After a failure that left some ranks with weights from before a step
    /// ([`PipelineError::HalfStepped`](crate::train::PipelineError)), a load makes the pipeline usable again.
    pub fn load(&mut self, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
        self.load_contents(checkpoint, Contents::All)?;
        let (saved, now) = (checkpoint.manifest.stages, self.placement().stages());
        if checkpoint.progress().seed.is_some() && saved != now {
            tracing::warn!(
                saved,
                now,
                "the checkpoint has another number of stages, so dropout draws other random numbers"
            );
        }
        self.training.resume(checkpoint.progress());
        self.branch.goes_on_from(checkpoint.folder(), checkpoint.manifest.serial);
        self.ranks.uneven = None;
        Ok(())
    }

    /// Loads only a checkpoint's weights: to evaluate, generate, or start a new training from them.
    ///
    /// # Errors
    /// Same as [`Pipeline::load`].
    pub fn load_weights(&mut self, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
        self.load_contents(checkpoint, Contents::Weights)
    }

    fn load_contents(&mut self, checkpoint: &Checkpoint, contents: Contents) -> Result<(), CheckpointError> {
        let used = self.ask(Read { checkpoint: checkpoint.clone(), contents })?;
        let used: Result<Vec<BTreeSet<usize>>, CheckpointError> = used.into_iter().collect();
        let found = used.and_then(|used| match checkpoint.others(&used.into_iter().flatten().collect()) {
            names if names.is_empty() => Ok(()),
            names => Err(CheckpointError::UnknownParameters { names }),
        });
        self.finish(found)?;
        self.branch.given.add_checkpoint(&checkpoint.manifest, contents == Contents::Weights);
        self.branch.has_read(checkpoint.folder());
        Ok(())
    }

    /// Loads weights that another program stored, and drops accumulated gradients. Optimizer state and progress stay.
    /// When ranks are processes, all make the call with the same weights.
    ///
    /// # Errors
    /// Returns [`CheckpointError::Pretrained`], which lists parameters that are not stored, stored tensors that no
    /// stage uses, and those of another shape or kind. Also fails if a store cannot be read, a rule does not fit, or
    /// two stages claim a name. The pipeline is unchanged.
    pub fn load_pretrained(&mut self, weights: &Pretrained) -> Result<(), CheckpointError> {
        self.refuse_same_names()?;
        let fits = self.ask(ReadPretrained { weights: weights.clone() })?;
        let fits: Result<Vec<Fit>, CheckpointError> = fits.into_iter().collect();
        let fit = fits.and_then(Fit::of_all);
        let fit = fit.and_then(|fit| self.branch.given.refuse_unturned(&fit).map(|()| fit));
        let fit = self.finish(fit)?;
        self.branch.given.add(&weights.called, fit);
        Ok(())
    }

    fn finish<T>(&mut self, found: Result<T, CheckpointError>) -> Result<T, CheckpointError> {
        self.ask(Finish { adopt: found.is_ok() })?;
        let found = found?;
        self.training.gradients_gone();
        Ok(found)
    }
}

/// Reads what each rank's stages need, and keeps it aside.
struct Read {
    checkpoint: Checkpoint,
    contents: Contents,
}

impl Command for Read {
    /// The indices of the checkpoint's parameters that the rank uses.
    type Reply = Result<BTreeSet<usize>, CheckpointError>;
    const NAME: &'static str = "reading a checkpoint";

    fn call(&self) -> Call {
        Call::Shared(format!("{} ({}, {:?})", Self::NAME, self.checkpoint.identity(), self.contents))
    }

    fn run(&self, rank: &mut Rank, _: Instant) -> Result<Self::Reply, ExecuteError> {
        whole_weights(rank)?;
        rank.executor.link().set_activity(Activity::Loading);
        caught(rank.number(), || Self::NAME.to_owned(), || Ok(self.offer(rank)))
    }

    fn exchange(&self, rank: &mut Rank, own: Self::Reply) -> Result<Vec<Self::Reply>, ExecuteError> {
        gather_results(rank, own, CheckpointError::elsewhere)
    }
}

impl Read {
    fn offer(&self, rank: &mut Rank) -> Result<BTreeSet<usize>, CheckpointError> {
        let (sharing, groups) = (rank.sharing.clone(), rank.executor.groups().clone());
        // The ranks that hold pieces of a stage join them here, before one of them can fail.
        let digests = rank.executor.stages().iter().map(|(&stage, held)| {
            let weights = names_to_find(held.as_ref(), stage, &sharing);
            (stage, self.checkpoint.digests_of(&weights, groups.of(stage)))
        });
        let (own, none) = (digests.collect::<HashMap<_, _>>(), HashMap::new());
        let mut used = BTreeSet::new();
        offer_stages(rank, |stage, held, progress| {
            let weights = names_to_find(held, stage, &sharing);
            let (holders, has_optimizer) = (groups.of(stage), held.has_optimizer());
            let (masters, ruled) = (held.options().precision.is_some(), &held.ruled_halves());
            let held = own.get(&stage).unwrap_or(&none);
            let (contents, stage) = (self.contents, Some(stage.index()));
            let weights = &weights;
            let wanted = Wanted { weights, stage, holders, contents, has_optimizer, held, masters, ruled };
            let (state, places) = self.checkpoint.state_for(wanted, progress)?;
            used.extend(places);
            Ok(state)
        })?;
        Ok(used)
    }
}

/// Reads what each rank's stages need of pretrained weights, and keeps it aside.
struct ReadPretrained {
    weights: Pretrained,
}

impl Command for ReadPretrained {
    type Reply = Result<Fit, CheckpointError>;
    const NAME: &'static str = "reading pretrained weights";

    fn run(&self, rank: &mut Rank, _: Instant) -> Result<Self::Reply, ExecuteError> {
        whole_weights(rank)?;
        rank.executor.link().set_activity(Activity::Loading);
        caught(rank.number(), || Self::NAME.to_owned(), || Ok(self.offer(rank)))
    }

    fn exchange(&self, rank: &mut Rank, own: Self::Reply) -> Result<Vec<Self::Reply>, ExecuteError> {
        gather_results(rank, own, CheckpointError::elsewhere)
    }
}

impl ReadPretrained {
    fn offer(&self, rank: &mut Rank) -> Result<Fit, CheckpointError> {
        let (sharing, groups) = (rank.sharing.clone(), rank.executor.groups().clone());
        let mut opened = Opened::new(&self.weights)?;
        let mut scaled = HashMap::new();
        if opened.adapters.is_some() {
            for (&stage, held) in rank.executor.stages().iter_mut() {
                scaled.insert(stage, scales(held.as_mut())?);
            }
        }
        let none = BTreeMap::new();
        offer_stages(rank, |stage, held, progress| {
            progress();
            let copies = |path: &str| sharing.names_of(stage, path).cloned().collect();
            opened.state_for(held, groups.of(stage), copies, scaled.get(&stage).unwrap_or(&none))
        })?;
        Ok(opened.fit)
    }
}

/// Gathers whole values to compare and adopt; [`Finish`] cuts them again.
fn whole_weights(rank: &mut Rank) -> Result<(), ExecuteError> {
    if rank.executor.group.any_sharded() {
        rank.executor.gather_all_shards()?;
    }
    Ok(())
}

/// Offers each stage what `read` returns for it, up to the first error. `read` calls its last argument to report
/// progress.
fn offer_stages(
    rank: &mut Rank,
    mut read: impl FnMut(StageId, &dyn ErasedStage, &mut dyn FnMut()) -> Result<StageState, CheckpointError>,
) -> Result<(), CheckpointError> {
    let stages: Vec<StageId> = rank.executor.stages().keys().copied().collect();
    for stage in stages {
        let (stages, link) = rank.executor.stages_and_link();
        let Some(held) = stages.get(&stage) else { continue };
        let state = read(stage, held.as_ref(), &mut || link.set_activity(Activity::Loading))?;
        refuse_infinite_copies(held.as_ref(), &state)?;
        rank.executor.offer(stage, state).map_err(CheckpointError::OptimizerState)?;
    }
    rank.executor.link().set_activity(Activity::Idle);
    Ok(())
}

/// Adopts what was kept aside, or discards it.
struct Finish {
    adopt: bool,
}

impl Command for Finish {
    type Reply = ();
    const NAME: &'static str = "ending the load of a checkpoint";
    const GATHERS: bool = true;

    fn run(&self, rank: &mut Rank, _: Instant) -> Result<(), ExecuteError> {
        if self.adopt {
            rank.changes_weights = true;
        }
        for stage in rank.executor.stages().values_mut() {
            if self.adopt { stage.adopt() } else { stage.decline() }
        }
        if self.adopt {
            rank.forget();
            rank.sharing.compared = false;
            if rank.executor.group.any_sharded() {
                rank.executor.reshard_all()?;
            }
        }
        rank.executor.release_all();
        Ok(())
    }
}
