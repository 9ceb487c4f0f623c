//! Checkpoints over a base: what is not trained, and equals the base, is not written again.
//!
//! Guarantees: a checkpoint over a base loads as one that holds everything, bit for bit, or is refused with the base
//! named. Its size is that of what trains, with the optimizer's state, and of buffers that changed.
//!
//! 1. Every checkpoint has a digest of each parameter that is not trained.
//! 2. A save over a base leaves out the values of those that the base holds with the same digest. Its manifest names
//!    the base's folder, and the digest of the base's manifest, which has the checksums of the base's files.
//! 3. A load reads them from the base, and compares both digests.

use super::error::CheckpointError;
use super::folder::Checkpoints;
use super::manifest::{BaseEntry, ParameterEntry, sha256};
use super::stored::Checkpoint;
use super::tensors::plain;
use crate::stage::ParameterState;
use burn::tensor::TensorData;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

/// The digest of a parameter's values.
pub(super) fn digest(values: TensorData) -> String {
    sha256(plain(values).as_bytes())
}

impl Checkpoints {
    /// Saves over a base: leaves out the values of parameters that are not trained and that the base holds, such as the
    /// frozen weights around adapters. The base is a whole checkpoint of the same model, in another folder, where it
    /// must stay: a checkpoint over it names it, and a load reads and verifies it.
    pub fn over(mut self, base: &Checkpoint) -> Self {
        self.base = Some(Arc::new(base.clone()));
        self
    }

    /// The base of the checkpoints that are saved.
    pub(super) fn base(&self) -> Option<&Arc<Checkpoint>> {
        self.base.as_ref()
    }

    /// How manifests name the base.
    ///
    /// # Errors
    /// Returns [`CheckpointError::Base`] if it is not there, or among these checkpoints, which are cleaned up.
    pub(super) fn base_entry(&self) -> Result<Option<BaseEntry>, CheckpointError> {
        let Some(base) = &self.base else { return Ok(None) };
        let among = base.folder().parent().and_then(|root| root.canonicalize().ok()) == self.root.canonicalize().ok();
        if among {
            let what = "it is one of the folder's own checkpoints, which may be removed".to_owned();
            return Err(CheckpointError::Base { base: base.folder().to_owned(), what });
        }
        base.as_base().map(Some)
    }
}

impl Checkpoint {
    /// How a manifest names this checkpoint as its base.
    ///
    /// # Errors
    /// Returns [`CheckpointError::Base`] if the folder holds it no longer.
    pub(super) fn as_base(&self) -> Result<BaseEntry, CheckpointError> {
        let folder = self.folder();
        let lost = |what: String| CheckpointError::Base { base: folder.to_owned(), what };
        let folder = folder.canonicalize().map_err(|error| lost(error.to_string()))?;
        let digest = self.manifest.digest();
        unchanged(self.folder(), &digest)?;
        Ok(BaseEntry { folder: folder.display().to_string(), digest })
    }

    /// The base, opened; `None` for a checkpoint that holds everything.
    ///
    /// # Errors
    /// Returns [`CheckpointError::Base`] if it is not where it was, or another one is there.
    pub(super) fn base(&self) -> Result<Option<Checkpoint>, CheckpointError> {
        let Some(BaseEntry { folder, digest }) = &self.manifest.base else { return Ok(None) };
        unchanged(Path::new(folder), digest).map(Some)
    }

    /// The index of the entry with the values of a parameter that is not trained; `None` if it holds other values.
    pub(super) fn holding(&self, entry: &ParameterEntry) -> Option<usize> {
        let is_same = |own: &ParameterEntry| {
            !own.digest.is_empty()
                && (&own.digest, &own.dtype, &own.shape) == (&entry.digest, &entry.dtype, &entry.shape)
        };
        self.places.get(entry.key())?.iter().copied().find(|&place| is_same(&self.parameters()[place]))
    }

    /// Reads what the base holds of these entries.
    ///
    /// # Errors
    /// Returns [`CheckpointError`] if the base is not what it was, or damaged.
    pub(super) fn read_in_base(
        &self,
        places: &BTreeSet<usize>,
        progress: &mut dyn FnMut(),
    ) -> Result<HashMap<usize, (TensorData, ParameterState)>, CheckpointError> {
        let Some(base) = self.base()?.filter(|_| !places.is_empty()) else { return Ok(HashMap::new()) };
        let lost = |what: String| CheckpointError::Base { base: base.folder().to_owned(), what };
        let lacks = |place: usize| lost(format!("it does not hold `{}`", self.parameters()[place].key()));
        let there = |&place: &usize| Ok((place, base.holding(&self.parameters()[place]).ok_or_else(|| lacks(place))?));
        let there: BTreeMap<usize, usize> = places.iter().map(there).collect::<Result<_, CheckpointError>>()?;
        let values = base.read(&there.values().copied().collect(), false, progress)?;
        let own = |(place, there): (usize, usize)| {
            let (data, _) = values.get(&there).cloned().ok_or_else(|| lacks(place))?;
            match self.parameters()[place].digest == digest(data.clone()) {
                true => Ok((place, (data, ParameterState::new()))),
                false => Err(lost(format!("its `{}` has other values", self.parameters()[place].key()))),
            }
        };
        there.into_iter().map(own).collect()
    }
}

/// Opens the checkpoint in a folder, if it still has this digest.
fn unchanged(folder: &Path, digest: &str) -> Result<Checkpoint, CheckpointError> {
    let lost = |what: String| CheckpointError::Base { base: folder.to_owned(), what };
    let now = Checkpoint::open(folder).map_err(|error| lost(error.to_string()))?;
    match now.manifest.digest() == digest {
        true => Ok(now),
        false => Err(lost("another checkpoint is there now".to_owned())),
    }
}
