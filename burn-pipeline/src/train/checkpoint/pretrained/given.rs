//! What all loads of pretrained weights gave a job, which later loads, exports and checkpoints must fit.

use super::fit::Fit;
use crate::train::checkpoint::error::CheckpointError;
use crate::train::checkpoint::manifest::{Manifest, Turn};
use std::collections::BTreeMap;

/// What a job got from pretrained weights.
#[derive(Clone, Debug, Default)]
pub(in crate::train::checkpoint) struct Given {
    /// What its stores are called.
    pub(in crate::train::checkpoint) stores: Vec<String>,
    /// The digests of the values of parameters, by name.
    pub(in crate::train::checkpoint) digests: BTreeMap<String, String>,
    /// The same, of what pretrained weights or a checkpoint gave last: the base of adapters.
    pub(in crate::train::checkpoint) loaded: BTreeMap<String, String>,
    /// How the rotary rows of each parameter were reordered, if they were.
    pub(in crate::train::checkpoint) turned: BTreeMap<String, Option<Turn>>,
    /// The same of the adapters of parameters.
    pub(in crate::train::checkpoint) adapted: BTreeMap<String, Option<Turn>>,
}

impl Given {
    /// Adds what another load gave.
    pub(in crate::train::checkpoint) fn add(&mut self, stores: &[String], fit: Fit) {
        self.stores.retain(|known| !stores.contains(known));
        self.stores.extend_from_slice(stores);
        self.loaded.extend(fit.digests.clone());
        self.digests.extend(fit.digests);
        self.turned.extend(fit.turned);
        self.adapted.retain(|name, _| !fit.with_base.contains(name));
        self.adapted.extend(fit.adapted);
    }

    /// Remembers what a checkpoint gave. One that starts a new job (`weights`) is the base of later adapters, also
    /// where it does not say what it holds. One that is resumed may have changed what was loaded before.
    pub(in crate::train::checkpoint) fn add_checkpoint(&mut self, manifest: &Manifest, weights: bool) {
        self.turned.clone_from(&manifest.turned);
        self.adapted.clone_from(&manifest.adapted);
        if weights {
            self.loaded.clear();
        }
        let entries = manifest.parameters.iter().filter(|entry| !entry.digest.is_empty());
        for entry in entries {
            self.loaded.entry(entry.key().to_owned()).or_insert_with(|| entry.digest.clone());
        }
    }

    /// Refuses adapters whose rows would have another order than those of the parameters that they adapt, whichever of
    /// the two is loaded now.
    pub(in crate::train::checkpoint) fn refuse_unturned(&self, fit: &Fit) -> Result<(), CheckpointError> {
        let of = |new: &BTreeMap<String, Option<Turn>>, old: &BTreeMap<String, Option<Turn>>, name: &String| {
            new.get(name).or_else(|| old.get(name)).copied()
        };
        for name in fit.adapted.keys().chain(fit.turned.keys()) {
            let own = of(&fit.adapted, &self.adapted, name).filter(|_| !fit.with_base.contains(name));
            let base = of(&fit.turned, &self.turned, name);
            if let Some((base, adapter)) = base.zip(own).filter(|(base, adapter)| base != adapter) {
                let (name, base, adapter) = (name.clone(), described(base), described(adapter));
                return Err(CheckpointError::Unturned { name, base, adapter });
            }
        }
        Ok(())
    }
}

/// How rows were reordered, as text.
fn described(turn: Option<Turn>) -> String {
    match turn {
        None => "not reordered".to_owned(),
        Some((heads, true)) => format!("reordered from halves to pairs in {heads} heads"),
        Some((heads, false)) => format!("reordered from pairs to halves in {heads} heads"),
    }
}
