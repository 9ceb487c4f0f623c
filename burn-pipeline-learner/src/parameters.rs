//! A model's parameters by their ids: registers gradients, loads stepped values, and checks that a cut covers the
//! model.
//!
//! Stages are built from clones of the model's layers, so a parameter has the same id in the model and in its stage,
//! and no names have to be declared. A cut that does not cover the model is refused.

use crate::error::LearnError;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Bool, DType, Device, Float, Int, Tensor};
use burn_pipeline::payload::AnyTensor;
use burn_pipeline::stage::{NamedWeight, Names, named_weights};
use burn_train::{Learner, LearnerModel};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Converts gradients to what Burn's optimizers take, each on its parameter's device.
pub(crate) fn gradients_of<M: Module>(model: &M, gradients: HashMap<ParamId, AnyTensor>) -> GradientsParams {
    struct Register {
        gradients: HashMap<ParamId, AnyTensor>,
        registered: GradientsParams,
    }

    impl ModuleVisitor for Register {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let Some(gradient) = self.gradients.remove(&param.id) else { return };
            let gradient = gradient.to_device(&param.lazy_device().inner());
            // A gradient has its parameter's kind and rank.
            if let Ok(gradient) = gradient.into_tensor::<D, Float>() {
                self.registered.register(param.id, gradient);
            }
        }
    }

    let mut register = Register { gradients, registered: GradientsParams::new() };
    model.visit(&mut register);
    register.registered
}

/// Makes the learner's parameters leaves, as stages do with theirs. An optimizer would not step nodes.
///
/// # Errors
/// Returns [`LearnError::Unclear`] for the first node of which it is unclear whether to train it.
pub(crate) fn make_leaves<M: LearnerModel>(learner: &mut Learner<M>) -> Result<(), LearnError> {
    let nodes = parameters_of(&learner.model()).into_iter().filter(|parameter| parameter.is_node);
    let nodes: HashSet<ParamId> = nodes.map(|parameter| parameter.id).collect();
    if nodes.is_empty() {
        return Ok(());
    }
    // Loaded parameters are leaves, and trained if `Param` remembers that setting.
    learner.load_model(learner.model().into_record());
    let mut parameters = parameters_of(&learner.model()).into_iter();
    let frozen = parameters.find(|parameter| nodes.contains(&parameter.id) && !parameter.trained);
    frozen.map_or(Ok(()), |parameter| Err(LearnError::Unclear { name: parameter.name }))
}

/// Refuses a trained parameter at two paths: the optimizer would step the value of the first path alone.
pub(crate) fn refuse_twice<M: Module>(model: &M) -> Result<(), LearnError> {
    let mut first: HashMap<ParamId, String> = HashMap::new();
    for Parameter { id, name, .. } in parameters_of(model).into_iter().filter(|parameter| parameter.trained) {
        if let Some(first) = first.insert(id, name.clone()) {
            return Err(LearnError::Twice { first, second: name });
        }
    }
    Ok(())
}

/// The values of all trained parameters, without autodiff.
pub(crate) fn trained_weights<M: Module>(model: &M) -> HashMap<ParamId, AnyTensor> {
    struct Trained(HashMap<ParamId, AnyTensor>);

    impl ModuleVisitor for Trained {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if param.is_require_grad() {
                self.0.insert(param.id, AnyTensor::new(param.val()).inner());
            }
        }
    }

    let mut trained = Trained(HashMap::new());
    model.visit(&mut trained);
    trained.0
}

/// A checksum of all parameters and buffers, as text.
pub(crate) fn checksum<M: Module>(model: &M) -> String {
    let mut hasher = crc32fast::Hasher::new();
    for weight in named_weights(model, &Names::default()) {
        match weight.value.to_data() {
            Ok(data) => hasher.update(data.as_bytes()),
            Err(message) => return format!("that cannot be read ({message})"),
        }
    }
    format!("#{:08x}", hasher.finalize())
}

/// The learning rate of the last step, as text, with a checksum over all parameters' rates, which may differ by group.
pub(crate) fn rates<M: LearnerModel>(learner: &Learner<M>) -> String {
    let (rates, mut hasher) = (learner.lr_current(), crc32fast::Hasher::new());
    for Parameter { id, name, .. } in parameters_of(&learner.model()) {
        hasher.update(&rates.lr_from_param(id, Some(&name)).to_le_bytes());
    }
    format!("{} #{:08x}", rates.base(), hasher.finalize())
}

/// Refuses a cut that leaves out a trained parameter, holds one that is not the model's, or holds one in another
/// element type than the model or on another device than its rank's. Stages and the ranks' devices are in model order.
pub(crate) fn check_cut<M: Module>(
    model: &M,
    stages: &[Vec<NamedWeight>],
    devices: &BTreeMap<usize, Device>,
) -> Result<(), LearnError> {
    let parameters = parameters_of(model);
    let known: HashMap<ParamId, DType> = parameters.iter().map(|parameter| (parameter.id, parameter.dtype)).collect();
    let mut held = HashSet::new();
    for (stage, weights) in stages.iter().enumerate() {
        for NamedWeight { id, path, value, .. } in weights {
            let Some(&own) = known.get(id) else { return Err(LearnError::Foreign { stage, path: path.clone() }) };
            if value.dtype() != own {
                return Err(LearnError::ElementType { stage, path: path.clone(), held: value.dtype(), own });
            }
            let (device, rank) = (value.device().inner(), devices.get(&stage).cloned().map(Device::inner));
            if let Some(rank) = rank.filter(|rank| *rank != device) {
                let (device, rank) = (format!("{device:?}"), format!("{rank:?}"));
                return Err(LearnError::Device { stage, path: path.clone(), device, rank });
            }
            held.insert(*id);
        }
    }
    let missing = parameters.into_iter().find(|parameter| parameter.trained && !held.contains(&parameter.id));
    missing.map_or(Ok(()), |parameter| Err(LearnError::Missing { name: parameter.name }))
}

/// The ids of all parameters and buffers, in visiting order.
pub(crate) fn ids_of<M: Module>(model: &M) -> Vec<ParamId> {
    parameters_of(model).into_iter().map(|parameter| parameter.id).collect()
}

/// A parameter or buffer of a model.
struct Parameter {
    id: ParamId,
    /// Its path in the model.
    name: String,
    trained: bool,
    /// True if it is a node of an autodiff graph: a value computed from trained parameters.
    is_node: bool,
    dtype: DType,
}

/// All parameters and buffers, in visiting order.
fn parameters_of<M: Module>(model: &M) -> Vec<Parameter> {
    #[derive(Default)]
    struct Found {
        path: Vec<String>,
        parameters: Vec<Parameter>,
    }

    impl Found {
        fn add(&mut self, id: ParamId, trained: bool, is_node: bool, dtype: DType) {
            self.parameters.push(Parameter { id, name: self.path.join("."), trained, is_node, dtype });
        }
    }

    impl ModuleVisitor for Found {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.to_owned());
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.base();
            let is_node = value.is_tracked() && !value.is_require_grad();
            self.add(param.id, param.is_require_grad(), is_node, param.dtype());
        }

        fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
            self.add(param.id, false, false, param.dtype());
        }

        fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
            self.add(param.id, false, false, param.dtype());
        }
    }

    let mut found = Found::default();
    model.visit(&mut found);
    found.parameters
}
