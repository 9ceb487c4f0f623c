//! A module's parameters and buffers, taken out and put back.
//!
//! Guarantees: a value that is taken out and put back is equal to the last bit, whatever its element type. This
//! includes frozen parameters and buffers (running statistics). A parameter with several paths in the module is one
//! weight with several names.

use super::each::{each, each_float, with_each};
use super::leaves::Standing;
use super::names::Names;
use crate::payload::AnyTensor;
use burn::module::{Module, ParamId};
use std::collections::{HashMap, HashSet};

/// A parameter or buffer of a module.
#[derive(Clone, Debug)]
pub struct NamedWeight {
    /// Its id in this module.
    pub id: ParamId,
    /// Its path in this module; the first one if there are several.
    pub path: String,
    /// Its names in the whole model, one for each path.
    pub names: Vec<String>,
    /// The types of the enclosing modules, outermost first, as Burn's visitors name them; stores use them to adapt
    /// layouts.
    pub(crate) containers: Vec<String>,
    /// Its value, without autodiff.
    pub value: AnyTensor,
}

/// All parameters and buffers of a module, in visiting order.
pub fn named_weights<M: Module>(module: &M, names: &Names) -> Vec<NamedWeight> {
    // Running statistics keep their last update aside; making a `valid` copy writes it back.
    drop(module.valid());
    let mut weights: Vec<NamedWeight> = Vec::new();
    each(module, |place, param| {
        let (id, path) = (param.id(), place.path());
        let name = names.in_model(&path);
        match weights.iter_mut().find(|weight| weight.id == id) {
            Some(known) if known.names.contains(&name) => {}
            Some(known) => known.names.push(name),
            None => {
                let (containers, value) = (place.containers.clone(), param.base().inner());
                weights.push(NamedWeight { id, path, names: vec![name], containers, value });
            }
        }
    });
    weights
}

/// A copy of the module for another thread, with tensors and running statistics that it does not share with this one.
pub(in crate::stage) fn unshared<M: Module>(module: &M) -> M {
    // A clone would share running statistics. Making a `valid` copy also writes back their last update.
    let apart = module.valid().train();
    let mut values: HashMap<ParamId, AnyTensor> = HashMap::new();
    each(module, |_, param| {
        let own = || {
            let value = param.base().inner().unshared();
            let strategy = param.base().device().gradient_checkpointing_strategy();
            strategy.map_or(value.clone(), |strategy| Standing::of(param).lifted(value, strategy))
        };
        values.entry(param.id()).or_insert_with(own);
    });
    with_each(apart, |param| values.get(&param.id()).cloned())
}

/// Like [`named_weights`], with adapters added to the weights that they adapt. A parameter with several paths, at some
/// of which an adapter adapts it, comes once for each path.
pub(in crate::stage) fn merged_weights<M: Module>(module: M, names: &Names) -> Vec<NamedWeight> {
    let mut paths = Vec::new();
    each_float(&module, |place, _| paths.push(place.path()));
    let adapted =
        |path: &str| paths.iter().any(|other| other.strip_prefix(path).is_some_and(|p| p.starts_with(".lora.")));
    let mut apart = HashSet::new();
    each_float(&module, |place, param| apart.extend(adapted(&place.path()).then(|| param.id())));
    let merged = module.materialize();
    let mut weights = named_weights(&merged, names);
    let several = |weight: &NamedWeight| weight.names.len() > 1 && apart.contains(&weight.id);
    let apart: HashSet<ParamId> = weights.iter().filter(|weight| several(weight)).map(|weight| weight.id).collect();
    weights.retain(|weight| !apart.contains(&weight.id));
    each(&merged, |place, param| {
        if apart.contains(&param.id()) {
            let (path, containers) = (place.path(), place.containers.clone());
            let (names, value) = (vec![names.in_model(&path)], param.base().inner());
            weights.push(NamedWeight { id: param.id(), path, names, containers, value });
        }
    });
    weights
}

/// The value of every parameter and buffer as it is stored, in visiting order; one with several paths comes once for
/// each. Initialises lazy ones.
pub(in crate::stage) fn values<M: Module>(module: &M) -> Vec<(ParamId, AnyTensor)> {
    let mut values = Vec::new();
    each(module, |_, param| values.push((param.id(), param.base())));
    values
}

/// The value of every float parameter, without autodiff, in the order of [`parameter_ids`](super::parameter_ids).
pub(in crate::stage) fn float_weights<M: Module>(module: &M) -> Vec<(ParamId, AnyTensor)> {
    let (mut weights, mut seen) = (Vec::new(), HashSet::new());
    each_float(module, |_, param| {
        if seen.insert(param.id()) {
            weights.push((param.id(), param.base().inner()));
        }
    });
    weights
}

/// The module with other values; a parameter without one keeps its own. Each stays trainable or frozen as it was, and
/// one with several paths stays one leaf of autodiff's graph.
pub fn with_weights<M: Module>(module: M, weights: &HashMap<ParamId, AnyTensor>) -> M {
    // An update that running statistics keep aside must not overwrite the new value later.
    drop(module.valid());
    let mut leaves: HashMap<ParamId, AnyTensor> = HashMap::new();
    with_each(module, |param| {
        let weight = weights.get(&param.id())?;
        let Some(strategy) = param.lazy_device().gradient_checkpointing_strategy() else { return Some(weight.clone()) };
        let leaf = || Standing::of(param).lifted(weight.clone(), strategy);
        Some(leaves.entry(param.id()).or_insert_with(leaf).clone())
    })
}
