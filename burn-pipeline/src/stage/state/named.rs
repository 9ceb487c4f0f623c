//! A module's float parameters by path, including tied parameters, which have several paths.

use super::each_float::each_float;
use super::names::Names;
use crate::payload::AnyTensor;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{DType, Tensor};
use std::collections::HashMap;

/// One float parameter of a module.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct NamedParameter {
    /// Its path in the module: field names and positions in lists, joined by dots (`blocks.0.norm.gamma`).
    pub(crate) path: String,
    /// Its name in the whole model.
    pub(crate) name: String,
    /// Its identifier.
    pub(crate) id: ParamId,
    /// Shape.
    pub(crate) shape: Vec<usize>,
    /// Element type.
    pub(crate) dtype: DType,
    /// True if it gets gradients.
    pub(crate) trainable: bool,
}

/// A module's float parameters in visiting order; one with several paths comes once for each.
pub(in crate::stage) fn named_parameters<M: Module>(module: &M, names: &Names) -> Vec<NamedParameter> {
    struct Find<'a> {
        path: Vec<String>,
        names: &'a Names,
        found: Vec<NamedParameter>,
    }

    impl ModuleVisitor for Find<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.to_owned());
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = AnyTensor::new(param.val());
            let path = self.path.join(".");
            self.found.push(NamedParameter {
                name: self.names.in_model(&path),
                path,
                id: param.id,
                shape: value.shape().to_vec(),
                dtype: value.dtype(),
                trainable: param.is_require_grad(),
            });
        }
    }

    let mut find = Find { path: Vec::new(), names, found: Vec::new() };
    module.visit(&mut find);
    find.found
}

/// Gives a parameter at every path the value of its first path, as one leaf of autodiff's graph.
///
/// Burn's optimizers step a parameter with several paths at the first of them only. Without this the other paths
/// would keep the old value and, as leaves of their own, would split the gradient.
pub(in crate::stage) fn retie<M: Module>(module: M) -> M {
    struct Retie(HashMap<ParamId, AnyTensor>);

    impl ModuleMapper for Retie {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let id = param.id;
            match self.0.get(&id).cloned() {
                None => {
                    self.0.insert(id, AnyTensor::new(param.val()));
                    param
                }
                Some(first) => {
                    let (id, _, mapper) = param.consume();
                    Param::from_mapped_value(id, Tensor::from_dispatch(first.into_dispatch()), mapper)
                }
            }
        }
    }

    let mut places = Vec::new();
    each_float(&module, |param| places.push(param.id()));
    let count = places.len();
    places.sort_unstable();
    places.dedup();
    if places.len() == count { module } else { module.map(&mut Retie(HashMap::new())) }
}

/// The identifiers of a module's float parameters, in visiting order.
pub(in crate::stage) fn parameter_ids<M: Module>(module: &M) -> Vec<ParamId> {
    let mut ids = Vec::new();
    each_float(module, |param| {
        if !ids.contains(&param.id()) {
            ids.push(param.id());
        }
    });
    ids
}
