//! Saving a whole pipeline: every rank writes its own stages' files.
//!
//! Guarantees: a failure on one rank is a failure on all of them, before the next step, so no process continues with a
//! checkpoint that others do not have. If a process dies during the save, earlier checkpoints stay intact.
//!
//! When ranks are processes, all make the call together:
//!
//! 1. Rank 0 creates the folder and sends its name to the others.
//! 2. If all save over the same base, every process writes its stages' files there, and all get the entries of all
//!    files.
//! 3. Rank 0 completes the checkpoint and tells the others whether it succeeded.

use super::error::CheckpointError;
use super::folder::{Checkpoints, Staging};
use super::manifest::{Manifest, ParameterEntry};
use super::stage_file::{Joined, Save, SavedStage};
use super::stored::{States, names_in_checkpoint};
use super::types::trained;
use crate::execute::ExecuteError;
use crate::link::Activity;
use crate::payload::AnyTensor;
use crate::stage::{ErasedStage, NamedWeight, StageError};
use crate::tensor_parallel::Holders;
use crate::train::control::{Call, Command, Exchange, gather_results};
use crate::train::pipeline::Pipeline;
use crate::train::step::{Drifted, Rank};
use burn_pipeline_plan::plan::StageId;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Instant;

impl Pipeline {
    /// Saves weights, optimizer state, progress, and `beside`: what the caller needs to resume its own work (its
    /// position in the data; `&()` for nothing). Every rank writes its stages' files. Returns the checkpoint's folder.
    ///
    /// Copies of a tied parameter with one name in the model are one parameter of the checkpoint, so a cut with more or
    /// fewer copies finds it.
    ///
    /// When ranks are processes, all make the call, with the same base and the same folder on a file system that all of
    /// them see; `beside` is rank 0's.
    ///
    /// # Errors
    /// Returns [`CheckpointError`] if two stages claim a name for parameters that are not tied, there are unapplied
    /// gradients, copies of a stage are no longer equal, another job saves into the folder, processes save over
    /// different bases, or something cannot be written. Existing checkpoints are unchanged, and the pipeline can
    /// continue.
    pub fn save(&mut self, checkpoints: &Checkpoints, beside: &impl Serialize) -> Result<PathBuf, CheckpointError> {
        let beside = self.ready_to_save(beside);
        let beside = self.admit(beside)?;
        let mut manifest = Manifest::new(self.progress(), beside, self.plans.name(), self.placement().stages());
        manifest.turned.clone_from(&self.branch.given.turned);
        manifest.adapted.clone_from(&self.branch.given.adapted);
        let staging = self.begin(checkpoints)?;
        // Every rank has replied, so none is still writing when an error is returned.
        let (base, given) = (checkpoints.base.clone(), self.branch.given.digests.clone());
        let saved = self.ask(Save { folder: staging.folder.clone(), base, given })?;
        let mut stages = saved.into_iter().collect::<Result<Vec<Vec<SavedStage>>, _>>()?.concat();
        stages.sort_by_key(|stage| stage.stage);
        let copies: Vec<&String> = self.stages.shared.iter().flat_map(|report| self.stages.names_of(report)).collect();
        let mut known = BTreeSet::new();
        for mut stage in stages {
            // The fields of a module may have another order than the declaration.
            stage.parameters.sort_by_key(|entry| copies.iter().position(|name| Some(*name) == entry.names.first()));
            manifest.optimizer |= stage.optimizer;
            let file = manifest.files.len();
            manifest.files.push(stage.file);
            // The copies of a tied parameter are equal: the first one's file is named.
            let first = stage.parameters.into_iter().filter(|parameter| known.insert(parameter.key().to_owned()));
            manifest.parameters.extend(first.map(|parameter| ParameterEntry { file, ..parameter }));
        }
        let complete = staging.commit(manifest, &mut self.branch);
        let name = complete.as_ref().map(|path| path.display().to_string()).map_err(ToString::to_string);
        let first = self.rank_0_says(name);
        // This process's own error has more detail than the text that the others get.
        complete.and_then(|complete| first.map(|_| complete))
    }

    /// The caller's value as text, if the pipeline can be saved now.
    fn ready_to_save(&self, beside: &impl Serialize) -> Result<String, CheckpointError> {
        if self.training.is_mid_step() {
            return Err(CheckpointError::MidStep);
        }
        self.refuse_same_names()?;
        serde_json::to_string(beside).map_err(|e| CheckpointError::Beside(e.to_string()))
    }

    /// Refuses a name that two stages claim for parameters that are not tied.
    pub(super) fn refuse_same_names(&self) -> Result<(), CheckpointError> {
        let refused = |(name, first, second)| Err(CheckpointError::SameName { name, first, second });
        self.stages.claimed_twice().map_or(Ok(()), refused)
    }

    /// Starts a checkpoint, or joins the one that rank 0 starts.
    fn begin(&mut self, checkpoints: &Checkpoints) -> Result<Staging, CheckpointError> {
        let (steps, job) = (self.progress().steps, &mut self.branch);
        // A checkpoint of weights from before and after a step must not replace a good one.
        let uneven = |all: Vec<PathBuf>| match self.ranks.uneven.is_some() && !all.is_empty() {
            true => Err(CheckpointError::HalfStepped),
            false => Ok(()),
        };
        let begin = || checkpoints.all().and_then(uneven).and_then(|()| checkpoints.begin(steps, job));
        let begun = self.ranks.holds(0).then(begin);
        let name = match &begun {
            Some(Ok(staging)) => Ok(staging.name.clone()),
            Some(Err(error)) => Err(error.to_string()),
            None => Ok(String::new()),
        };
        let name = self.rank_0_says(name);
        match begun {
            Some(begun) => begun.and_then(|staging| name.map(|_| staging)),
            None => checkpoints.join(name?),
        }
    }

    /// When ranks are processes: gives rank 0's value to all of them.
    fn rank_0_says(&mut self, own: Result<String, String>) -> Result<String, CheckpointError> {
        let first = match self.ranks.processes {
            false => own,
            true => self.ask(Exchange(own))?.into_iter().next().unwrap_or_else(|| Err("it did not reply".to_owned())),
        };
        first.map_err(|message| CheckpointError::elsewhere(0, message))
    }
}

impl Command for Save {
    type Reply = Result<Vec<SavedStage>, CheckpointError>;
    const NAME: &'static str = "writing a checkpoint";

    fn call(&self) -> Call {
        // A manifest names rank 0's base, so the others must leave out what that one holds.
        let over = self.base.as_ref().map(|base| format!(" over {}", base.described())).unwrap_or_default();
        Call::Shared(format!("{}{over}", Self::NAME))
    }

    fn run(&self, rank: &mut Rank, _: Instant) -> Result<Self::Reply, ExecuteError> {
        rank.with_whole_weights(Self::NAME, |rank| save_stages(rank, self))
    }

    fn exchange(&self, rank: &mut Rank, own: Self::Reply) -> Result<Vec<Self::Reply>, ExecuteError> {
        gather_results(rank, own, CheckpointError::elsewhere)
    }
}

/// Writes this rank's stages. Of a bidirectional placement the first route is saved, because both copies are equal. Of
/// a tensor-parallel group, the first member writes what it joins from all pieces. The outer error ends the call on all
/// ranks; the inner one is this rank's reply, and the pipeline goes on.
fn save_stages(rank: &mut Rank, save: &Save) -> Result<Result<Vec<SavedStage>, CheckpointError>, ExecuteError> {
    rank.sharing.refuse_replaced(&mut rank.executor)?;
    if let Some(Drifted { stage, first, other }) = rank.drifted()? {
        return Ok(Err(CheckpointError::Drifted { stage, first, other }));
    }
    let (sharing, groups) = (rank.sharing.clone(), rank.executor.groups().clone());
    let stages: Vec<StageId> = rank.executor.stages().keys().copied().filter(|stage| stage.route() == 0).collect();
    // All data-parallel replicas gather the states of all stages, even after an error, because the others wait for
    // them.
    let mut saved = Vec::new();
    for stage in stages {
        let states = rank.executor.gather_optimizer_states(stage)?;
        let (holders, saves, number) = (groups.of(stage), rank.answers_for(stage), rank.executor.rank());
        let joined = rank.executor.stages().get(&stage).filter(|held| holders.joins(held.parameters()));
        let Some(held) = joined.map(AsRef::as_ref) else { continue };
        let states = match states {
            // The other holders wait for this one's states, so all ranks end the call.
            Err(message) if held.parameters().into_iter().any(|id| holders.is_cut(id)) => {
                let source = StageError::OptimizerState(message);
                return Err(ExecuteError::Module { rank: number, stage, source });
            }
            Err(message) => Err(CheckpointError::OptimizerState(message)),
            Ok(states) => join_states(holders, states, held, saves),
        };
        let weights = join_weights(holders, names_in_checkpoint(held, stage, &sharing), saves);
        let trained = trained(held);
        if !saves {
            continue;
        }
        if !save.folder.is_dir() {
            saved.push(Err(CheckpointError::NotShared { folder: save.folder.clone() }));
            continue;
        }
        let link = rank.executor.link();
        saved.push(states.and_then(|states| save.stage(stage, (weights?, trained), states, link)));
    }
    rank.executor.link().set_activity(Activity::Idle);
    Ok(saved.into_iter().collect())
}

/// A stage's optimizer state, of whole parameters. All holders call it; `keeps` is true for the one that saves it.
fn join_states(
    holders: Holders<'_>,
    states: Option<States>,
    held: &dyn ErasedStage,
    keeps: bool,
) -> Result<Option<States>, CheckpointError> {
    let Some(mut states) = states else { return Ok(None) };
    let joined = holders.join_states(&mut states, &held.weights(), keeps);
    joined.map(|()| Some(states)).map_err(CheckpointError::OptimizerState)
}

/// Joins each weight, on the host, for the rank that saves the stage. All holders call it.
fn join_weights(holders: Holders<'_>, weights: Vec<NamedWeight>, keeps: bool) -> Result<Vec<Joined>, CheckpointError> {
    let join = |weight: NamedWeight| {
        let whole = holders.is_cut(weight.id).then(|| holders.whole(weight.id, weight.value.clone()));
        let data = whole.filter(|_| keeps).map(AnyTensor::into_data).transpose();
        data.map_err(|message| CheckpointError::Device { name: weight.names[0].clone(), message })
            .map(|data| (weight, data))
    };
    // All weights are joined before an error is returned, because the other ranks wait for each.
    let joined: Vec<Result<Joined, CheckpointError>> = weights.into_iter().map(join).collect();
    joined.into_iter().collect()
}
