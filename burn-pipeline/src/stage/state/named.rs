//! A module's float parameters by path, including tied parameters, which have several paths.

use super::each::{each_float, with_each, with_renamed};
use super::names::Names;
use crate::payload::AnyTensor;
use burn::backend::{Dispatch, ops::FloatTensorOps};
use burn::module::{Module, ParamId};
use burn::tensor::DType;
use std::collections::{HashMap, HashSet};

/// One float parameter of a module.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct NamedParameter {
    /// Its path in the module: field names and positions in lists, joined by dots (`blocks.0.norm.gamma`).
    pub(crate) path: String,
    /// Its name in the whole model.
    pub(crate) name: String,
    pub(crate) id: ParamId,
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: DType,
    /// True if it gets gradients.
    pub(crate) trainable: bool,
}

/// A module's float parameters in visiting order; one with several paths comes once for each.
pub(in crate::stage) fn named_parameters<M: Module>(module: &M, names: &Names) -> Vec<NamedParameter> {
    let mut found = Vec::new();
    each_float(module, |place, param| {
        let (path, value) = (place.path(), param.base());
        found.push(NamedParameter {
            name: names.in_model(&path),
            path,
            id: param.id(),
            shape: value.shape().to_vec(),
            dtype: value.dtype(),
            trainable: param.is_trained(),
        });
    });
    found
}

/// Gives a parameter at every path the value of its first path, as one leaf of autodiff's graph.
///
/// Burn's optimizers step a parameter with several paths at the first of them only. Without this the other paths
/// would keep the old value and, as leaves of their own, would split the gradient.
pub(in crate::stage) fn retie<M: Module>(module: M) -> M {
    let (mut seen, mut tied) = (HashSet::new(), false);
    each_float(&module, |_, param| tied |= !seen.insert(param.id()));
    if !tied {
        return module;
    }
    let mut first: HashMap<ParamId, AnyTensor> = HashMap::new();
    with_each(module, |param| match first.get(&param.id()) {
        Some(first) => Some(first.clone()),
        None => {
            first.insert(param.id(), param.base());
            None
        }
    })
}

/// A module like this one whose parameters have identifiers of their own, to be frozen or trained apart from it: the
/// reference model of a preference loss, or the target of a moving average. What has one identifier at several paths
/// still has one. Make it before layers are cut over a group, since a group knows its cuts by identifier.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::LinearConfig;
/// use burn::tensor::Device;
/// use burn_pipeline::stage::untied;
/// let policy = LinearConfig::new(4, 4).init(&Device::flex());
/// let reference = untied(policy.clone()).no_grad();
/// assert_ne!(policy.weight.id, reference.weight.id);
/// ```
///
/// # Panics
/// Panics if the module has running statistics (Burn's `RunningState`): Burn gives them no other identifier, and the
/// two modules would share them. Make the second module by its config then.
pub fn untied<M: Module>(module: M) -> M {
    let (before, mut ids) = (parameter_ids(&module), HashMap::<ParamId, ParamId>::new());
    let apart = with_renamed(module, |param| {
        let value = param.base();
        // One leaf of autodiff's graph would get the gradients of both.
        let apart = |value| Dispatch::float_set_require_grad(Dispatch::float_detach(value), true);
        let value = if param.is_trained() { AnyTensor::from_dispatch(apart(value.into_dispatch())) } else { value };
        Some((*ids.entry(param.id()).or_default(), value))
    });
    let shared = parameter_ids(&apart).iter().any(|id| before.contains(id));
    assert!(!shared, "running statistics keep their identifier in a clone: make the second module by its config");
    apart
}

/// The identifiers of a module's float parameters, in visiting order.
pub(in crate::stage) fn parameter_ids<M: Module>(module: &M) -> Vec<ParamId> {
    let mut ids = Vec::new();
    each_float(module, |_, param| {
        if !ids.contains(&param.id()) {
            ids.push(param.id());
        }
    });
    ids
}
