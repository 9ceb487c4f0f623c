//! The file of one stage: its weights and the optimizer state of each.
//!
//! Values that the base holds are left out ([`base`](super::base)). Only a digest of a parameter that is not trained
//! needs its values before the file is written.

use super::error::CheckpointError;
use super::folder::Base;
use super::manifest::{FileEntry, ParameterEntry, StateEntry, dtype_name};
use super::stored::States;
use super::tensors::{Item, digest, write};
use crate::link::{Activity, Link};
use crate::stage::{NamedWeight, StateValue};
use burn::module::ParamId;
use burn::tensor::TensorData;
use burn_pipeline_plan::plan::StageId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;

/// What a rank has written of one stage.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SavedStage {
    pub(super) stage: usize,
    pub(super) file: FileEntry,
    /// Its parameters. The caller numbers the files and sets `file` in them.
    pub(super) parameters: Vec<ParameterEntry>,
    /// True if optimizer state was saved.
    pub(super) optimizer: bool,
}

/// Writes one file per stage.
pub(super) struct Save {
    pub(super) folder: PathBuf,
    /// Holds what need not be written.
    pub(super) base: Option<Base>,
    /// The digests of what pretrained weights gave, by name.
    pub(super) given: BTreeMap<String, String>,
}

/// A weight, and the elements of the whole one if the rank holds a piece.
pub(super) type Joined = (NamedWeight, Option<TensorData>);

impl Save {
    /// Writes a stage's weights, of which some are trained.
    pub(super) fn stage(
        &self,
        stage: StageId,
        (weights, trained): (Vec<Joined>, HashSet<ParamId>),
        states: Option<States>,
        link: &mut dyn Link,
    ) -> Result<SavedStage, CheckpointError> {
        link.set_activity(Activity::Saving);
        let optimizer = states.is_some();
        let mut states = states.unwrap_or_default();
        let (mut parameters, mut items) = (Vec::new(), Vec::new());
        for (weight, whole) in weights {
            let is_trained = trained.contains(&weight.id);
            let (entry, tensors) = self.entry(weight, whole, is_trained, &mut states)?;
            link.set_activity(Activity::Saving);
            parameters.push(entry);
            items.extend(tensors);
        }
        let path = self.folder.join(format!("stage-{:03}.safetensors", stage.index()));
        let about = [("stage", stage.index().to_string())];
        let file = write(&path, items, &about, &mut || link.set_activity(Activity::Saving))?;
        Ok(SavedStage { stage: stage.index(), file, parameters, optimizer })
    }

    /// A parameter's entry, and the tensors to write for it.
    fn entry(
        &self,
        weight: NamedWeight,
        whole: Option<TensorData>,
        is_trained: bool,
        states: &mut States,
    ) -> Result<(ParameterEntry, Vec<Item<'static>>), CheckpointError> {
        let NamedWeight { id, names, value, .. } = weight;
        let shape = whole.as_ref().map_or(value.shape(), |whole| whole.shape().clone()).to_vec();
        let (name, dtype, kept) = (names[0].clone(), value.dtype(), states.remove(&id).unwrap_or_default());
        let failed = |message| CheckpointError::Device { name: name.clone(), message };
        let values = || whole.clone().map_or_else(|| value.to_data(), Ok);
        let digest = if is_trained { String::new() } else { digest(values().map_err(failed)?) };
        let state = kept.iter().map(|(field, kept)| (field.clone(), StateEntry::of(kept))).collect();
        let entry = ParameterEntry {
            dtype: dtype_name(dtype),
            shape: shape.clone(),
            file: 0,
            state,
            digest,
            in_base: false,
            names,
        };
        let in_base = match &self.base {
            // A parameter that was trained before keeps its state of the optimizer, beside its values.
            _ if !kept.is_empty() => false,
            None => false,
            Some(Base::Checkpoint(base)) => base.holding(&entry).is_some(),
            Some(Base::Pretrained) => self.given.get(&name).is_some_and(|given| *given == entry.digest),
        };
        let mut items = Vec::new();
        if !in_base {
            let read = move || whole.map_or_else(|| value.to_data(), Ok);
            items.push(Item { name: name.clone(), dtype, shape, read: Box::new(read) });
        }
        for (field, kept) in kept {
            let StateValue::Tensor(data) = kept else { continue };
            items.push(Item::of(ParameterEntry::state_key(&name, &field), data));
        }
        Ok((ParameterEntry { in_base, ..entry }, items))
    }
}
