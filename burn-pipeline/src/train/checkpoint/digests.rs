//! Digests of parameters that are not trained, by which a base is recognised.

use super::error::CheckpointError;
use super::manifest::sha256;
use super::pretrained::{Fitted, Turn};
use super::tensors::plain;
use crate::stage::ErasedStage;
use burn::module::ParamId;
use burn::tensor::TensorData;
use std::collections::{BTreeMap, HashSet};

/// What a job got from pretrained weights.
#[derive(Clone, Debug, Default)]
pub(super) struct Given {
    /// What its stores are called.
    pub(super) stores: Vec<String>,
    /// The digests of the values of parameters that are not trained, by name.
    pub(super) digests: BTreeMap<String, String>,
    /// How the rotary rows of each parameter were reordered, if they were.
    pub(super) turned: BTreeMap<String, Option<Turn>>,
}

impl Given {
    /// Adds what another load gave.
    pub(super) fn add(&mut self, stores: &[String], fitted: Fitted) {
        self.stores.retain(|known| !stores.contains(known));
        self.stores.extend_from_slice(stores);
        self.digests.extend(fitted.digests);
        self.turned.extend(fitted.turned);
    }

    /// Refuses adapters whose rows would have another order than those of the parameters that they adapt.
    pub(super) fn refuse_unturned(&self, fitted: &Fitted) -> Result<(), CheckpointError> {
        let base = |name: &String| fitted.turned.get(name).or_else(|| self.turned.get(name));
        let unlike = |(name, turn): &(&String, &Option<Turn>)| base(name).is_some_and(|base| base != *turn);
        match fitted.adapted.iter().find(unlike) {
            Some((name, _)) => Err(CheckpointError::Unturned { name: name.clone() }),
            None => Ok(()),
        }
    }
}

/// The digest of a parameter's values, or why they cannot be read; `None` if another replica has the whole parameter,
/// and compares it.
pub(super) type HeldDigest = Option<Result<String, String>>;

/// The digest of a parameter's values.
pub(super) fn digest(values: TensorData) -> String {
    sha256(plain(values).as_bytes())
}

/// The parameters of a stage that are trained.
pub(super) fn trained(held: &dyn ErasedStage) -> HashSet<ParamId> {
    held.named_parameters().into_iter().filter(|parameter| parameter.trainable).map(|parameter| parameter.id).collect()
}
