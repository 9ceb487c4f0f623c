//! Digests of parameters that are not trained, by which a base is recognised.

use super::manifest::sha256;
use super::tensors::plain;
use crate::stage::ErasedStage;
use burn::module::ParamId;
use burn::tensor::TensorData;
use std::collections::HashSet;

/// The digest of a parameter's values, or why they cannot be read.
pub(super) type HeldDigest = Result<String, String>;

pub(super) fn digest(values: TensorData) -> String {
    sha256(plain(values).as_bytes())
}

/// The parameters of a stage that are trained.
pub(super) fn trained(held: &dyn ErasedStage) -> HashSet<ParamId> {
    held.named_parameters().into_iter().filter(|parameter| parameter.trainable).map(|parameter| parameter.id).collect()
}
