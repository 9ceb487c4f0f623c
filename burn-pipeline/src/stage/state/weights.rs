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
use std::collections::HashMap;

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

/// Like [`named_weights`], with adapters added to the weights that they adapt. A parameter with several paths that has
/// other values at some of them, because an adapter adapts it there alone, comes once for each value.
pub(in crate::stage) fn merged_weights<M: Module>(module: M, names: &Names) -> Vec<NamedWeight> {
    let merged = module.materialize();
    let mut weights = named_weights(&merged, names);
    let first = |id: ParamId, weights: &[NamedWeight]| weights.iter().position(|weight| weight.id == id);
    each(&merged, |place, param| {
        let Some(known) = first(param.id(), &weights).filter(|&known| weights[known].names.len() > 1) else { return };
        let (path, value) = (place.path(), param.base().inner());
        let (name, bytes) =
            (names.in_model(&path), |value: &AnyTensor| value.to_data().map(|data| data.as_bytes().to_vec()));
        if path != weights[known].path && bytes(&value) != bytes(&weights[known].value) {
            weights[known].names.retain(|other| *other != name);
            let containers = place.containers.clone();
            weights.push(NamedWeight { id: param.id(), path, names: vec![name], containers, value });
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

/// The value of every float parameter, in visiting order, without autodiff; one with several paths comes once for
/// each.
pub(in crate::stage) fn float_weights<M: Module>(module: &M) -> Vec<(ParamId, AnyTensor)> {
    let mut weights = Vec::new();
    each_float(module, |_, param| weights.push((param.id(), param.value().inner())));
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
