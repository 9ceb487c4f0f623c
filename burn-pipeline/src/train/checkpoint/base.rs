//! Checkpoints over a base: what is not trained, and equals the base, is not written again.
//!
//! Guarantees: a checkpoint over a base loads as one that holds everything, bit for bit, or is refused with the base
//! named. Its size is that of what trains, with the optimizer's state, and of buffers that changed.
//!
//! 1. Every checkpoint has a digest of each parameter that is not trained.
//! 2. A save over a base leaves out the values of those that the base holds with the same digest. If the base is
//!    another checkpoint, the manifest names its folder, and the digest of its manifest, which has the checksums of its
//!    files; a load reads the values there, and compares both digests.
//! 3. If the base is what `load_pretrained` gave, the job keeps the digests of these values (`Given`), and the
//!    manifest names their stores. A load leaves such parameters as they are, and refuses others than those saved: the
//!    rules by which a store is read are the program's code, so the program loads the base first.

use super::error::CheckpointError;
use super::folder::{Base, Checkpoints};
use super::manifest::{BaseEntry, ParameterEntry};
use super::pretrained::Given;
use super::stored::Checkpoint;
use super::tensors::{HeldDigest, digest};
use crate::stage::{NamedWeight, ParameterState};
use crate::tensor_parallel::Holders;
use burn::module::ParamId;
use burn::tensor::TensorData;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

impl Base {
    /// What it is, for processes to compare.
    pub(super) fn described(&self) -> String {
        match self {
            Base::Checkpoint(base) => format!("the checkpoint {}", base.identity()),
            Base::Pretrained => "pretrained weights".to_owned(),
        }
    }
}

impl Checkpoints {
    /// Saves over a base: leaves out the values of parameters that are not trained and that the base holds, such as the
    /// frozen weights around adapters. The base is a whole checkpoint of the same model, in another folder, where it
    /// must stay: a checkpoint over it names it, and a load reads and verifies it.
    pub fn over(mut self, base: &Checkpoint) -> Self {
        self.base = Some(Base::Checkpoint(Arc::new(base.clone())));
        self
    }

    /// Saves over the weights that [`Pipeline::load_pretrained`](crate::train::Pipeline::load_pretrained) gave: leaves
    /// out the values of parameters that are not trained and still have them. To resume, load the same weights again,
    /// then the checkpoint: it names their folder, and refuses a model with other values.
    pub fn over_pretrained(mut self) -> Self {
        self.base = Some(Base::Pretrained);
        self
    }

    /// How manifests name the base, which must not be among these checkpoints, because they are cleaned up.
    pub(super) fn base_entry(&self, given: &Given) -> Result<Option<BaseEntry>, CheckpointError> {
        let base = match &self.base {
            None => return Ok(None),
            Some(Base::Pretrained) if given.stores.is_empty() => return Err(CheckpointError::NothingLoaded),
            Some(Base::Pretrained) => return Ok(Some(BaseEntry::Pretrained { stores: given.stores.clone() })),
            Some(Base::Checkpoint(base)) => base,
        };
        // The base may have been opened by a link, or by a name without its folder.
        let root = base.folder().canonicalize().ok().and_then(|base| base.parent().map(Path::to_owned));
        if root.is_some_and(|root| self.root.canonicalize().is_ok_and(|own| own == root)) {
            let what = "it is one of the folder's own checkpoints, which may be removed".to_owned();
            return Err(CheckpointError::Base { base: base.folder().to_owned(), what });
        }
        base.as_base().map(Some)
    }
}

impl Checkpoint {
    /// How a manifest names this checkpoint as its base, if the folder still holds it.
    pub(super) fn as_base(&self) -> Result<BaseEntry, CheckpointError> {
        let folder = self.folder();
        let lost = |what: String| CheckpointError::Base { base: folder.to_owned(), what };
        let folder = folder.canonicalize().map_err(|error| lost(error.to_string()))?;
        let digest = self.manifest.digest();
        unchanged(self.folder(), &digest)?;
        Ok(BaseEntry::Checkpoint { folder: folder.display().to_string(), digest })
    }

    /// The checkpoint that is the base, opened; `None` if there is none.
    pub(super) fn base(&self) -> Result<Option<Checkpoint>, CheckpointError> {
        let Some(BaseEntry::Checkpoint { folder, digest }) = &self.manifest.base else { return Ok(None) };
        unchanged(Path::new(folder), digest).map(Some)
    }

    /// The index of the entry with the values of a parameter that is not trained; `None` if it holds other values.
    pub(super) fn holding(&self, entry: &ParameterEntry) -> Option<usize> {
        let is_same = |own: &ParameterEntry| {
            !own.digest.is_empty()
                && !self.leaves_to_model(own)
                && (&own.digest, &own.dtype, &own.shape) == (&entry.digest, &entry.dtype, &entry.shape)
        };
        self.places.get(entry.key())?.iter().copied().find(|&place| is_same(&self.parameters()[place]))
    }

    /// Returns true if a parameter's values are those that the model must have.
    pub(super) fn leaves_to_model(&self, entry: &ParameterEntry) -> bool {
        entry.in_base && matches!(self.manifest.base, Some(BaseEntry::Pretrained { .. }))
    }

    /// The digests of a stage's values for the parameters that this checkpoint leaves to the model, on a rank that has
    /// the whole parameter. All ranks that hold pieces of the stage call it, before they do anything that can fail on
    /// one of them.
    pub(super) fn digests_of(&self, weights: &[NamedWeight], holders: Holders<'_>) -> HashMap<ParamId, HeldDigest> {
        let is_left = |weight: &&NamedWeight| {
            let mut places = weight.names.iter().filter_map(|name| self.places.get(name)).flatten();
            places.any(|&place| self.leaves_to_model(&self.parameters()[place]))
        };
        let own = |weight: &NamedWeight| {
            let whole = holders.whole(weight.id, weight.value.clone());
            holders.has_whole(weight.id).then(|| (weight.id, whole.into_data().map(digest)))
        };
        weights.iter().filter(is_left).filter_map(own).collect()
    }

    /// Refuses a model whose values are not those that the checkpoint leaves to it. What this rank holds no digest of,
    /// another replica compares.
    pub(super) fn compare_held(&self, place: usize, held: Option<&HeldDigest>) -> Result<(), CheckpointError> {
        let entry = &self.parameters()[place];
        match held {
            _ if !self.leaves_to_model(entry) => Ok(()),
            None => Ok(()),
            Some(Ok(own)) if *own == entry.digest => Ok(()),
            Some(Err(message)) => {
                Err(CheckpointError::Device { name: entry.key().to_owned(), message: message.clone() })
            }
            Some(Ok(_)) => {
                let what = format!(
                    "the model has other values, or not in {}; load the same weights first \
                     (`Pipeline::load_pretrained`)",
                    entry.dtype
                );
                Err(self.lacks(entry, &what))
            }
        }
    }

    /// The error for a parameter whose values the checkpoint leaves to the model.
    fn lacks(&self, entry: &ParameterEntry, what: &str) -> CheckpointError {
        let stores = match &self.manifest.base {
            Some(BaseEntry::Pretrained { stores }) => stores.join(", "),
            _ => String::new(),
        };
        CheckpointError::LeftToModel { stores, name: entry.key().to_owned(), what: what.to_owned() }
    }

    /// Reads what the base holds of these entries.
    pub(super) fn read_in_base(
        &self,
        places: &BTreeSet<usize>,
        progress: &mut dyn FnMut(),
    ) -> Result<HashMap<usize, (TensorData, ParameterState)>, CheckpointError> {
        let left = places.iter().map(|&place| &self.parameters()[place]).find(|entry| self.leaves_to_model(entry));
        if let Some(entry) = left {
            let what = "load them into a pipeline, then this checkpoint, and export from there";
            return Err(self.lacks(entry, what));
        }
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
