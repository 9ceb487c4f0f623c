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

/// The parameters that are nodes of an autodiff graph: values computed from trained parameters.
fn nodes_of<M: Module>(model: &M) -> HashSet<ParamId> {
    struct Nodes(HashSet<ParamId>);

    impl ModuleVisitor for Nodes {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.base();
            if value.is_tracked() && !value.is_require_grad() {
                self.0.insert(param.id);
            }
        }
    }

    let mut nodes = Nodes(HashSet::new());
    model.visit(&mut nodes);
    nodes.0
}

/// Makes the learner's parameters leaves, as stages do with theirs. An optimizer would not step nodes.
///
/// # Errors
/// Returns [`LearnError::Unclear`] for the first node of which it is unclear whether to train it.
pub(crate) fn make_leaves<M: LearnerModel>(learner: &mut Learner<M>) -> Result<(), LearnError> {
    let nodes = nodes_of(&learner.model());
    if nodes.is_empty() {
        return Ok(());
    }
    // Loaded parameters are leaves, and trained if `Param` remembers that setting.
    learner.load_model(learner.model().into_record());
    let frozen = names_of(&learner.model()).into_iter().find(|(id, _, trained, _)| nodes.contains(id) && !trained);
    frozen.map_or(Ok(()), |(_, name, ..)| Err(LearnError::Unclear { name }))
}

/// Refuses a trained parameter at two paths: the optimizer would step the value of the first path alone.
pub(crate) fn refuse_twice<M: Module>(model: &M) -> Result<(), LearnError> {
    let mut first: HashMap<ParamId, String> = HashMap::new();
    for (id, second, ..) in names_of(model).into_iter().filter(|(_, _, trained, _)| *trained) {
        if let Some(first) = first.insert(id, second.clone()) {
            return Err(LearnError::Twice { first, second });
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
    for (id, name, ..) in names_of(&learner.model()) {
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
    let names = names_of(model);
    let known: HashMap<ParamId, DType> = names.iter().map(|(id, _, _, dtype)| (*id, *dtype)).collect();
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
    let missing = names.into_iter().find(|(id, _, trained, _)| *trained && !held.contains(id));
    missing.map_or(Ok(()), |(_, name, ..)| Err(LearnError::Missing { name }))
}

/// The ids of all parameters and buffers, in visiting order.
pub(crate) fn ids_of<M: Module>(model: &M) -> Vec<ParamId> {
    names_of(model).into_iter().map(|(id, ..)| id).collect()
}

/// Every parameter and buffer: its id, its path, whether it is trained, and its element type.
fn names_of<M: Module>(model: &M) -> Vec<(ParamId, String, bool, DType)> {
    #[derive(Default)]
    struct Names {
        path: Vec<String>,
        found: Vec<(ParamId, String, bool, DType)>,
    }

    impl Names {
        fn add(&mut self, id: ParamId, trained: bool, dtype: DType) {
            self.found.push((id, self.path.join("."), trained, dtype));
        }
    }

    impl ModuleVisitor for Names {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.to_owned());
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.add(param.id, param.is_require_grad(), param.dtype());
        }

        fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
            self.add(param.id, false, param.dtype());
        }

        fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
            self.add(param.id, false, param.dtype());
        }
    }

    let mut names = Names::default();
    model.visit(&mut names);
    names.found
}
