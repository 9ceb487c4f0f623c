//! What one rank does for a checkpoint: writes its stages' files, and reads them back.
//!
//! Loading takes two calls, so that no rank has other weights before every rank has found its own in order.
//!
//! A copy of a shared parameter has the declaration's name beside its own, when it is written and when it is looked
//! for: so a cut with more copies, or fewer, or in other places, finds the value of the one parameter that they are.

use super::error::CheckpointError;
use super::manifest::{FileEntry, ParameterEntry, StateEntry, dtype_name};
use super::stored::{Checkpoint, Parts, SHARED, States};
use super::tensors::{Item, write};
use crate::execute::ExecuteError;
use crate::link::{Activity, Link};
use crate::plan::StageId;
use crate::stage::{ErasedStage, NamedWeight, StateValue};
use crate::train::shared::Sharing;
use crate::train::step::rank::Rank;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What a rank has written of one stage.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SavedStage {
    /// The stage.
    pub(super) stage: usize,
    /// Its file.
    pub(super) file: FileEntry,
    /// Its parameters; `file` in them is to be set by who gathers the ranks' answers.
    pub(super) parameters: Vec<ParameterEntry>,
    /// Was an optimizer's state saved?
    pub(super) optimizer: bool,
}

impl Rank {
    /// Writes one file a stage into a folder. Of the two replicas in a bidirectional placement, the first is saved:
    /// they are equal.
    ///
    /// # Errors
    /// If a tensor cannot be read from its device, or the file not be written.
    pub(crate) fn save(&mut self, folder: &Path) -> Result<Result<Vec<SavedStage>, CheckpointError>, ExecuteError> {
        let sharing = self.sharing().clone();
        let first: Vec<StageId> = self.executor().stages().keys().copied().filter(|s| s.replica() == 0).collect();
        // All data-parallel replicas go through all stages, also after an error, since they may have to meet.
        let mut saved = Vec::new();
        for stage in first {
            let states = self.executor().gather_optimizer_states(stage);
            let states = self.told(states)?.map_err(CheckpointError::OptimizerState);
            if self.executor().grid().replica() > 0 {
                continue;
            }
            if !folder.is_dir() {
                saved.push(Err(CheckpointError::NotShared { folder: folder.to_owned() }));
                continue;
            }
            let (stages, link) = self.executor().stages_and_link();
            let held = stages.get(&stage).map(|held| held.as_ref());
            let save = |states| held.map(|held| save(stage, held, states, &sharing, link, folder)).transpose();
            saved.push(states.and_then(save));
        }
        self.executor().link().announce(Activity::Idle);
        Ok(saved.into_iter().filter_map(Result::transpose).collect())
    }

    /// Reads what this rank's stages need, and keeps it aside; returns the places of the parameters that it took.
    ///
    /// # Errors
    /// If a parameter is missing or has another form, or a file is not what was written.
    pub(crate) fn offer(&mut self, checkpoint: &Checkpoint, parts: Parts) -> Result<BTreeSet<usize>, CheckpointError> {
        let sharing = self.sharing().clone();
        let mut used = BTreeSet::new();
        let stages: Vec<StageId> = self.executor().stages().keys().copied().collect();
        for stage in stages {
            let (stages, link) = self.executor().stages_and_link();
            let Some(held) = stages.get(&stage) else { continue };
            let weights = named_weights(held.as_ref(), stage, &sharing);
            let mut told = || link.announce(Activity::Loading);
            let index = Some(stage.index());
            let (state, places) = checkpoint.state_for(&weights, index, parts, held.has_optimizer(), &mut told)?;
            used.extend(places);
            self.executor().offer(stage, state).map_err(CheckpointError::OptimizerState)?;
        }
        self.executor().link().announce(Activity::Idle);
        Ok(used)
    }

    /// Adopts what was kept aside, or lets go of it.
    ///
    /// # Errors
    /// What a device reports.
    pub(crate) fn conclude(&mut self, adopt: bool) -> Result<(), ExecuteError> {
        for stage in self.executor().stages().values_mut() {
            if adopt { stage.adopt() } else { stage.decline() }
        }
        if adopt {
            self.forget();
        }
        if adopt && self.executor().is_sharded() {
            let sharded = self.executor().reshard();
            self.told(sharded)?;
        }
        self.executor().release_all();
        Ok(())
    }
}

/// A stage's weights with their names, those that copies of a shared parameter have in common among them.
fn named_weights(held: &dyn ErasedStage, stage: StageId, sharing: &Sharing) -> Vec<NamedWeight> {
    let mut weights = held.named_weights();
    for weight in &mut weights {
        weight.names.extend(sharing.name_of(stage, &weight.path).map(|name| format!("{SHARED}{name}")));
    }
    weights
}

fn save(
    stage: StageId,
    held: &dyn ErasedStage,
    states: Option<States>,
    sharing: &Sharing,
    link: &mut dyn Link,
    folder: &Path,
) -> Result<SavedStage, CheckpointError> {
    link.announce(Activity::Saving);
    let optimizer = states.is_some();
    let mut states = states.unwrap_or_default();
    let (mut parameters, mut items) = (Vec::new(), Vec::new());
    for weight in named_weights(held, stage, sharing) {
        let (entry, tensors) = entry(weight, &mut states);
        parameters.push(entry);
        items.extend(tensors);
    }
    let path = folder.join(format!("stage-{:03}.safetensors", stage.index()));
    let about = [("stage", stage.index().to_string())];
    let file = write(&path, items, &about, &mut || link.announce(Activity::Saving))?;
    Ok(SavedStage { stage: stage.index(), file, parameters, optimizer })
}

/// A parameter's entry, and the tensors that are written for it.
fn entry(weight: NamedWeight, states: &mut States) -> (ParameterEntry, Vec<Item<'static>>) {
    let NamedWeight { id, names, value, .. } = weight;
    let (dtype, shape) = (value.dtype(), value.shape().to_vec());
    let mut state = BTreeMap::new();
    let mut items =
        vec![Item { name: names[0].clone(), dtype, shape: shape.clone(), read: Box::new(move || value.to_data()) }];
    for (field, kept) in states.remove(&id).unwrap_or_default() {
        state.insert(field.clone(), StateEntry::of(&kept));
        if let StateValue::Tensor(data) = kept {
            let name = ParameterEntry::state_key(&names[0], &field);
            let (dtype, shape) = (data.dtype(), data.shape().to_vec());
            items.push(Item { name, dtype, shape, read: Box::new(move || Ok(data)) });
        }
    }
    (ParameterEntry { names, dtype: dtype_name(dtype), shape, file: 0, state }, items)
}
