//! What all loads of pretrained weights gave a job, which later loads, exports and checkpoints must fit.

use super::fit::Fitted;
use crate::train::checkpoint::error::CheckpointError;
use crate::train::checkpoint::manifest::Turn;
use std::collections::BTreeMap;

/// What a job got from pretrained weights.
#[derive(Clone, Debug, Default)]
pub(in crate::train::checkpoint) struct Given {
    /// What its stores are called.
    pub(in crate::train::checkpoint) stores: Vec<String>,
    /// The digests of the values of parameters that are not trained, by name.
    pub(in crate::train::checkpoint) digests: BTreeMap<String, String>,
    /// How the rotary rows of each parameter were reordered, if they were.
    pub(in crate::train::checkpoint) turned: BTreeMap<String, Option<Turn>>,
}

impl Given {
    /// Adds what another load gave.
    pub(in crate::train::checkpoint) fn add(&mut self, stores: &[String], fitted: Fitted) {
        self.stores.retain(|known| !stores.contains(known));
        self.stores.extend_from_slice(stores);
        self.digests.extend(fitted.digests);
        self.turned.extend(fitted.turned);
    }

    /// Refuses adapters whose rows would have another order than those of the parameters that they adapt.
    pub(in crate::train::checkpoint) fn refuse_unturned(&self, fitted: &Fitted) -> Result<(), CheckpointError> {
        let base = |name: &String| fitted.turned.get(name).or_else(|| self.turned.get(name));
        let unlike = |(name, turn): &(&String, &Option<Turn>)| base(name).is_some_and(|base| base != *turn);
        match fitted.adapted.iter().find(unlike) {
            Some((name, _)) => Err(CheckpointError::Unturned { name: name.clone() }),
            None => Ok(()),
        }
    }
}
