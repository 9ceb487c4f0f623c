//! What ranks found in pretrained weights, and whether it fits the model.

use crate::train::checkpoint::error::CheckpointError;
use crate::train::checkpoint::manifest::Turn;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What one rank found. The fits of all ranks decide.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub(in crate::train::checkpoint) struct Fit {
    /// Parameters that are not stored.
    pub(super) missing: BTreeSet<String>,
    /// Stored tensors of another shape or kind, as text.
    pub(super) mismatched: BTreeSet<String>,
    /// Stored tensors that no stage of the rank used, by name, and how a message names them.
    pub(super) unused: BTreeMap<String, String>,
    /// As long as the adapter has changed nothing: a name that it was shown.
    pub(super) idle: Option<String>,
    /// The digests of the values of parameters, by name.
    pub(super) digests: BTreeMap<String, String>,
    /// How the rotary rows of each parameter were reordered, if they were; and, for each parameter that got an adapter
    /// from a folder of adapters, those of the adapter.
    pub(super) turned: BTreeMap<String, Option<Turn>>,
    pub(super) adapted: BTreeMap<String, Option<Turn>>,
    /// Parameters whose adapters came with a whole model, in its order.
    pub(super) with_base: BTreeSet<String>,
    /// For each tied parameter, by the first of its names: the digests of what its copies got, by their names.
    pub(super) tied: BTreeMap<String, BTreeMap<String, String>>,
}

impl Fit {
    /// Joins the fits of all ranks, and refuses stores that do not fit the model, copies of a tied parameter that would
    /// differ, and an adapter that changed nothing.
    pub(in crate::train::checkpoint) fn of_all(fits: Vec<Fit>) -> Result<Fit, CheckpointError> {
        let all = fits.into_iter().reduce(|mut all, mut next| {
            all.missing.append(&mut next.missing);
            all.mismatched.append(&mut next.mismatched);
            all.unused.retain(|name, _| next.unused.contains_key(name));
            all.digests.append(&mut next.digests);
            all.turned.append(&mut next.turned);
            all.adapted.append(&mut next.adapted);
            all.with_base.append(&mut next.with_base);
            for (name, copies) in next.tied {
                all.tied.entry(name).or_default().extend(copies);
            }
            all.idle = all.idle.zip(next.idle).map(|(one, other)| if one.is_empty() { other } else { one });
            all
        });
        let mut all = all.unwrap_or_default();
        let missing: Vec<String> = all.missing.iter().cloned().collect();
        let mismatched: Vec<String> = all.mismatched.iter().cloned().collect();
        let unused: Vec<String> = all.unused.values().cloned().collect();
        if !missing.is_empty() || !mismatched.is_empty() || !unused.is_empty() {
            return Err(CheckpointError::Pretrained { missing, mismatched, unused });
        }
        all.tied.values().try_for_each(refuse_unequal)?;
        all.idle.take().map_or(Ok(all), |shown| Err(CheckpointError::IdleAdapter { shown }))
    }
}

/// Refuses copies of a tied parameter that got other values.
fn refuse_unequal(copies: &BTreeMap<String, String>) -> Result<(), CheckpointError> {
    let Some((first, digest)) = copies.first_key_value() else { return Ok(()) };
    let refused = |(other, _)| Err(CheckpointError::Copies { first: first.clone(), second: String::clone(other) });
    copies.iter().find(|(_, other)| *other != digest).map_or(Ok(()), refused)
}
