//! Digests of parameters that are not trained, by which a base is recognised.

use super::error::CheckpointError;
use super::manifest::sha256;
use super::pretrained::Fitted;
use super::tensors::plain;
use crate::stage::ErasedStage;
use burn::module::ParamId;
use burn::tensor::TensorData;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// What a job got from pretrained weights.
#[derive(Clone, Debug, Default)]
pub(super) struct Given {
    /// What its stores are called.
    pub(super) stores: Vec<String>,
    /// The digests of the values of parameters that are not trained, by name.
    pub(super) digests: BTreeMap<String, String>,
    /// The parameters whose rotary rows were reordered.
    pub(super) turned: BTreeSet<String>,
}

impl Given {
    /// Adds what another load gave.
    pub(super) fn add(&mut self, stores: &[String], fitted: Fitted) {
        self.stores.retain(|known| !stores.contains(known));
        self.stores.extend_from_slice(stores);
        self.digests.extend(fitted.digests);
        self.turned.extend(fitted.turned);
    }

    /// Refuses adapters whose rows have another order than those of the parameters that they adapt.
    pub(super) fn refuse_unturned(&self, fitted: &Fitted) -> Result<(), CheckpointError> {
        let unlike = |(name, turned): &(&String, &bool)| !**turned && self.turned.contains(*name);
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
