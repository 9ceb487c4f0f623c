//! A module's parameters and buffers, taken out and put back.
//!
//! Guarantees: a value that is taken out and put back is equal to the last bit, whatever its element type. This
//! includes frozen parameters and buffers (running statistics). A parameter with several paths in the module is one
//! weight with several names.

use super::each_float::each_float;
use super::leaves::Standing;
use super::names::Names;
use crate::payload::AnyTensor;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::kind::Basic;
use burn::tensor::{Bool, Int, Tensor};
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
    let mut gather = Gather { path: Vec::new(), containers: Vec::new(), names, weights: Vec::new() };
    module.visit(&mut gather);
    gather.weights
}

struct Gather<'a> {
    path: Vec<String>,
    containers: Vec<String>,
    names: &'a Names,
    weights: Vec<NamedWeight>,
}

impl Gather<'_> {
    fn add<const D: usize, K: Basic>(&mut self, id: ParamId, value: Tensor<D, K>) {
        let path = self.path.join(".");
        let name = self.names.in_model(&path);
        match self.weights.iter_mut().find(|weight| weight.id == id) {
            Some(known) if known.names.contains(&name) => {}
            Some(known) => known.names.push(name),
            None => {
                let value = AnyTensor::new(value).inner();
                let containers = self.containers.clone();
                self.weights.push(NamedWeight { id, path, names: vec![name], containers, value });
            }
        }
    }
}

impl ModuleVisitor for Gather<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.push(name.to_owned());
        self.containers.push(container.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
        self.containers.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.add(param.id, param.base());
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.add(param.id, param.base());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.add(param.id, param.base());
    }
}

/// The value of every parameter and buffer as it is stored, in visiting order; one with several paths comes once for
/// each. Initialises lazy ones.
pub(in crate::stage) fn values<M: Module>(module: &M) -> Vec<(ParamId, AnyTensor)> {
    struct Values(Vec<(ParamId, AnyTensor)>);

    impl ModuleVisitor for Values {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push((param.id, AnyTensor::new(param.base())));
        }

        fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
            self.0.push((param.id, AnyTensor::new(param.base())));
        }

        fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
            self.0.push((param.id, AnyTensor::new(param.base())));
        }
    }

    let mut values = Values(Vec::new());
    module.visit(&mut values);
    values.0
}

/// The value of every float parameter, in visiting order, without autodiff; one with several paths comes once for
/// each.
pub(in crate::stage) fn float_weights<M: Module>(module: &M) -> Vec<(ParamId, AnyTensor)> {
    let mut weights = Vec::new();
    each_float(module, |param| weights.push((param.id(), param.value().inner())));
    weights
}

/// The module with other values; a parameter without one keeps its own. Each stays trainable or frozen as it was, and
/// one with several paths stays one leaf of autodiff's graph.
pub fn with_weights<M: Module>(module: M, weights: &HashMap<ParamId, AnyTensor>) -> M {
    // An update that running statistics keep aside must not overwrite the new value later.
    drop(module.valid());
    module.map(&mut Replace { weights, leaves: HashMap::new() })
}

struct Replace<'a> {
    weights: &'a HashMap<ParamId, AnyTensor>,
    leaves: HashMap<ParamId, AnyTensor>,
}

impl Replace<'_> {
    /// The new value of a parameter that is not trained.
    fn value<const D: usize, K: Basic>(&self, id: ParamId, autodiff: bool) -> Option<Tensor<D, K>> {
        let weight = self.weights.get(&id)?.clone();
        let value = if autodiff { weight.leaf(Default::default(), false) } else { weight };
        Some(Tensor::from_dispatch(value.into_dispatch()))
    }
}

impl ModuleMapper for Replace<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(weight) = self.weights.get(&param.id) else { return param };
        let (standing, device) = (Standing::of(&param), param.lazy_device());
        let (id, _, mapper) = param.consume();
        let strategy = device.gradient_checkpointing_strategy();
        let leaf = self.leaves.entry(id).or_insert_with(|| match strategy {
            Some(strategy) => standing.lifted(weight.clone(), strategy),
            None => weight.clone(),
        });
        Param::from_mapped_value(id, Tensor::from_dispatch(leaf.clone().into_dispatch()), mapper)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let autodiff = param.lazy_device().is_autodiff();
        let Some(value) = self.value(param.id, autodiff) else { return param };
        let (id, _, mapper) = param.consume();
        Param::from_mapped_value(id, value, mapper)
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        let autodiff = param.lazy_device().is_autodiff();
        let Some(value) = self.value(param.id, autodiff) else { return param };
        let (id, _, mapper) = param.consume();
        Param::from_mapped_value(id, value, mapper)
    }
}
