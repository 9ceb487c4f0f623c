//! Saving and loading a whole pipeline.
//!
//! Ranks that are processes make each call together, as all calls: rank 0's process starts the folder and tells its
//! name, every process writes its stages' files there, all are told what all have written, and rank 0's completes the
//! checkpoint. What fails anywhere fails everywhere, before the next step, so nobody trains on with a checkpoint that
//! others believe in. A process that dies meanwhile leaves the checkpoints that were there.

use super::error::CheckpointError;
use super::folder::{Checkpoints, Staging};
use super::manifest::{Manifest, Progress};
use super::rank::SavedStage;
use super::stored::{Checkpoint, Parts};
use crate::stage::NamedWeight;
use crate::train::SharedReport;
use crate::train::control::command::{Answer, Command};
use crate::train::pipeline::Pipeline;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

impl Pipeline {
    /// How far training has come.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Saves weights, optimizers and progress, and `beside`, what the caller needs to take its own work up again (its
    /// place in the data; `&()` for nothing). Every rank writes its stages' files; returns the checkpoint's folder.
    ///
    /// Copies of a shared parameter that have one name in the model are one parameter of the checkpoint, so that
    /// another cut, with more copies or fewer, finds it.
    ///
    /// Where ranks are processes, all call it, with folders that are one and the same on a file system that all of
    /// them see; `beside` is rank 0's.
    ///
    /// # Errors
    /// If two stages claim a name of parameters that are not shared, gradients wait for a step, or something cannot be
    /// written: the checkpoints that were there are untouched, and the pipeline can go on.
    pub fn save(&mut self, checkpoints: &Checkpoints, beside: &impl Serialize) -> Result<PathBuf, CheckpointError> {
        let beside = self.ready_to_save(beside);
        let beside = self.all_ready(beside)?;
        let mut manifest = Manifest::new(self.progress, beside, self.plan_name(), self.placement().stages());
        let staging = self.begin(checkpoints)?;
        let folder = Arc::from(staging.folder());
        let mut known = BTreeSet::new();
        for stage in self.saved(folder)? {
            manifest.optimizer |= stage.optimizer;
            let file = manifest.files.len();
            manifest.files.push(stage.file);
            // Of a shared parameter's copies, which are equal, the first one's file is named.
            let first = stage.parameters.into_iter().filter(|parameter| known.insert(parameter.key().to_owned()));
            manifest.parameters.extend(first.map(|mut parameter| {
                parameter.file = file;
                parameter
            }));
        }
        let complete = staging.commit(manifest);
        let name = |path: &PathBuf| path.display().to_string();
        let told = self.first_process_says(complete.as_ref().map(name).map_err(ToString::to_string));
        // This process's own error says more than what it told.
        let complete = complete?;
        told.map(|_| complete)
    }

    /// What the caller saves, as text, if there is nothing in the way.
    fn ready_to_save(&self, beside: &impl Serialize) -> Result<String, CheckpointError> {
        if self.waiting > 0 {
            return Err(CheckpointError::MidStep);
        }
        if let Some((name, first, second)) = self.claimed_twice() {
            return Err(CheckpointError::SameName { name, first, second });
        }
        serde_json::to_string(beside).map_err(|e| CheckpointError::Beside(e.to_string()))
    }

    /// Tells the other processes of a refusal.
    fn all_ready<T>(&mut self, ready: Result<T, CheckpointError>) -> Result<T, CheckpointError> {
        if let (true, Err(refusal)) = (self.together, &ready) {
            // What comes back is this very refusal, or a failure that the next call reports.
            let _ = self.ask(&Command::Refuse(refusal.to_string()));
        }
        ready
    }

    /// Starts a checkpoint, or takes part in the one that rank 0's process starts.
    fn begin(&mut self, checkpoints: &Checkpoints) -> Result<Staging, CheckpointError> {
        let step = self.progress.steps;
        if !self.together {
            return checkpoints.begin(step);
        }
        let begun = if self.members.contains(&0) { Some(checkpoints.begin(step)) } else { None };
        let said = begun.as_ref().map_or(Ok(String::new()), |begun| match begun {
            Ok(staging) => Ok(staging.name().to_owned()),
            Err(error) => Err(error.to_string()),
        });
        let name = self.first_process_says(said);
        match begun {
            Some(begun) => begun.and_then(|staging| name.map(|_| staging)),
            None => Ok(checkpoints.join(name?)),
        }
    }

    /// What rank 0's process says, on all of them.
    fn first_process_says(&mut self, said: Result<String, String>) -> Result<String, CheckpointError> {
        if !self.together {
            return said.map_err(|message| CheckpointError::Elsewhere { rank: 0, message });
        }
        let first = self.tell(&said)?.into_iter().next();
        let first = first.unwrap_or_else(|| Err("no rank has answered".to_owned()));
        first.map_err(|message| CheckpointError::Elsewhere { rank: 0, message })
    }

    /// What all ranks have written, in model order.
    fn saved(&mut self, folder: Arc<Path>) -> Result<Vec<SavedStage>, CheckpointError> {
        let mut stages = Vec::new();
        // Every rank has answered, so that nobody writes any more, before an error is returned.
        for answer in self.ask(&Command::Save { folder })? {
            if let Answer::Saved(saved) = answer {
                stages.push(saved);
            }
        }
        let mut stages: Vec<SavedStage> = stages.into_iter().collect::<Result<Vec<_>, _>>()?.concat();
        stages.sort_by_key(|stage| stage.stage);
        Ok(stages)
    }

    /// Takes over a checkpoint's weights, optimizer state and progress, whatever cut it was saved from. Gathered
    /// gradients are forgotten. Settings (the optimizer's, clipping, the loss's reduction) are those that this pipeline
    /// was built with. Where ranks are processes, all call it, with the same checkpoint.
    ///
    /// # Errors
    /// If names, shapes or element types do not fit, or a file is missing or damaged: the pipeline is as before.
    pub fn load(&mut self, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
        self.take_over(checkpoint, Parts::All)?;
        self.progress = checkpoint.progress();
        self.seed = self.progress.seed.or(self.seed);
        Ok(())
    }

    /// Takes over a checkpoint's weights alone: to evaluate, generate, or train anew from them.
    ///
    /// # Errors
    /// As [`Pipeline::load`].
    pub fn load_weights(&mut self, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
        self.take_over(checkpoint, Parts::Weights)
    }

    fn take_over(&mut self, checkpoint: &Checkpoint, parts: Parts) -> Result<(), CheckpointError> {
        let command = Command::Offer { checkpoint: Arc::new(checkpoint.clone()), parts };
        let mut answers = Vec::new();
        for answer in self.ask(&command)? {
            if let Answer::Offered(used) = answer {
                answers.push(used);
            }
        }
        let used: Result<Vec<BTreeSet<usize>>, CheckpointError> = answers.into_iter().collect();
        let found = used.and_then(|used| match checkpoint.others(&used.into_iter().flatten().collect()) {
            names if names.is_empty() => Ok(()),
            names => Err(CheckpointError::UnknownParameters { names }),
        });
        self.ask(&Command::Conclude { adopt: found.is_ok() })?;
        found?;
        self.waiting = 0;
        Ok(())
    }

    /// All parameters and buffers with their names in the model: one list a stage, in model order. Where ranks are
    /// processes, all call it, and each gets all of them.
    ///
    /// # Errors
    /// As [`Pipeline::step`].
    pub fn named_weights(&mut self) -> Result<Vec<Vec<NamedWeight>>, crate::train::PipelineError> {
        let mut rows = Vec::new();
        for answer in self.ask(&Command::NamedWeights)? {
            if let Answer::NamedWeights(stages) = answer {
                rows.extend(stages.into_iter().filter(|(stage, _)| stage.replica() == 0));
            }
        }
        rows.sort_by_key(|(stage, _)| *stage);
        Ok(rows.into_iter().map(|(_, weights)| weights).collect())
    }

    /// A name that two stages claim for parameters that are not copies of a shared one, and the stages.
    pub(crate) fn claimed_twice(&self) -> Option<(String, usize, usize)> {
        let mut claimed: BTreeMap<&str, (usize, Option<usize>)> = BTreeMap::new();
        for facts in self.facts.iter().filter(|facts| facts.stage.replica() == 0) {
            let stage = facts.stage.index();
            for (path, name) in &facts.names {
                let shared = self.shared_at(stage, path);
                match claimed.insert(name, (stage, shared)) {
                    Some((first, other)) if shared.is_none() || shared != other => {
                        return Some((name.clone(), first, stage));
                    }
                    _ => {}
                }
            }
        }
        None
    }

    /// The place among the shared parameters of the one that a stage holds at this path.
    fn shared_at(&self, stage: usize, path: &str) -> Option<usize> {
        let holds = |report: &SharedReport| report.copies.iter().any(|copy| copy.stage == stage && copy.path == path);
        self.shared().iter().position(holds)
    }
}
