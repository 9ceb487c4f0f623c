//! What one rank does for a checkpoint: writes its stages' files, and reads them back.
//!
//! Loading takes two calls, so that no rank has other weights before every rank has found its own in order.

use super::error::CheckpointError;
use super::manifest::{FileEntry, ParameterEntry, StateEntry, dtype_name};
use super::stored::{Checkpoint, Parts, States};
use super::tensors::{Item, write};
use crate::link::{Activity, Link};
use crate::plan::Stage;
use crate::stage::{ErasedStage, NamedWeight, StateValue};
use crate::train::rank::Rank;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What a rank has written of one stage.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::train) struct SavedStage {
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
    pub(in crate::train) fn save(&mut self, folder: &Path) -> Result<Vec<SavedStage>, CheckpointError> {
        if !folder.is_dir() {
            return Err(CheckpointError::NotShared { folder: folder.to_owned() });
        }
        let (stages, link) = self.executor().stages_and_link();
        let first = stages.iter().filter(|(stage, _)| stage.replica() == 0);
        let saved = first.map(|(&stage, held)| save(stage, held.as_ref(), link, folder)).collect();
        link.announce(Activity::Idle);
        saved
    }

    /// Reads what this rank's stages need, and keeps it aside; returns the places of the parameters that it took.
    ///
    /// # Errors
    /// If a parameter is missing or has another form, or a file is not what was written.
    pub(in crate::train) fn offer(
        &mut self,
        checkpoint: &Checkpoint,
        parts: Parts,
    ) -> Result<BTreeSet<usize>, CheckpointError> {
        let (stages, link) = self.executor().stages_and_link();
        let mut used = BTreeSet::new();
        for (stage, held) in stages {
            let weights = held.named_weights();
            let mut told = || link.announce(Activity::Loading);
            let index = Some(stage.index());
            let (state, places) = checkpoint.state_for(&weights, index, parts, held.has_optimizer(), &mut told)?;
            used.extend(places);
            held.offer(state).map_err(|error| CheckpointError::OptimizerState(error.to_string()))?;
        }
        link.announce(Activity::Idle);
        Ok(used)
    }

    /// Adopts what was kept aside, or lets go of it.
    pub(in crate::train) fn conclude(&mut self, adopt: bool) {
        for stage in self.executor().stages().values_mut() {
            if adopt { stage.adopt() } else { stage.decline() }
        }
        if adopt {
            self.forget();
        }
    }
}

fn save(
    stage: Stage,
    held: &dyn ErasedStage,
    link: &mut dyn Link,
    folder: &Path,
) -> Result<SavedStage, CheckpointError> {
    link.announce(Activity::Saving);
    let states = held.optimizer_state().map_err(|error| CheckpointError::OptimizerState(error.to_string()))?;
    let optimizer = states.is_some();
    let mut states = states.unwrap_or_default();
    let (mut parameters, mut items) = (Vec::new(), Vec::new());
    for weight in held.named_weights() {
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
