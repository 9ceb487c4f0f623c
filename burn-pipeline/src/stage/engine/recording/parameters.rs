//! A module's parameters and buffers in visiting order: as values to feed, and as placeholders of a capture.

use crate::payload::AnyTensor;
use crate::program::{edge, leaf, lowered, placeholder};
use crate::stage::state::{each_float, values, with_each};
use burn::backend::autodiff::NodeId;
use burn::backend::ir::TensorId;
use burn::backend::{BackendTensor, DispatchTensor, DispatchTensorKind};
use burn::module::{Flag, Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{DType, Device, GradientCheckpointingStrategy};
use std::collections::HashSet;

/// The properties of a parameter that a capture depends on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(in crate::stage::engine) struct ParameterSpec {
    pub(in crate::stage::engine) shape: Vec<usize>,
    pub(in crate::stage::engine) dtype: DType,
    /// True if its gradient is wanted.
    pub(in crate::stage::engine) trainable: bool,
    /// The index of an earlier parameter that is the same leaf of autodiff's graph (tied parameters).
    pub(in crate::stage::engine) same_as: Option<usize>,
}

/// Parameters, buffers and flags of a module, in visiting order.
#[derive(Debug, Default)]
pub(in crate::stage::engine) struct Parameters {
    pub(in crate::stage::engine) specs: Vec<ParameterSpec>,
    pub(in crate::stage::engine) values: Vec<DispatchTensor>,
    pub(in crate::stage::engine) flags: Vec<bool>,
    pub(in crate::stage::engine) ids: Vec<ParamId>,
    nodes: Vec<Option<NodeId>>,
}

impl Parameters {
    /// Reads a module's parameters, and initialises lazy ones.
    pub(in crate::stage::engine) fn of<M: Module>(module: &M) -> Self {
        let mut parameters = Self::default();
        values(module).into_iter().for_each(|(id, value)| parameters.add(id, value));
        module.visit(&mut Flags(&mut parameters.flags));
        parameters
    }

    fn add(&mut self, id: ParamId, value: AnyTensor) {
        let trainable = value.is_tracked();
        let node = if trainable { node(value.as_dispatch()) } else { None };
        let same_as = node.and_then(|node| self.nodes.iter().position(|&other| other == Some(node)));
        self.specs.push(ParameterSpec { shape: value.shape().to_vec(), dtype: value.dtype(), trainable, same_as });
        self.nodes.push(node);
        self.ids.push(id);
        self.values.push(value.inner().into_dispatch());
    }
}

struct Flags<'a>(&'a mut Vec<bool>);

impl ModuleVisitor for Flags<'_> {
    fn visit_flag(&mut self, flag: &Param<Flag>) {
        self.0.push(flag.val().is_enabled());
    }
}

/// The node of autodiff's graph behind a tracked tensor.
fn node(tensor: &DispatchTensor) -> Option<NodeId> {
    let DispatchTensorKind::Autodiff(inner) = &tensor.kind else { return None };
    match &**inner {
        DispatchTensorKind::Flex(BackendTensor::Autodiff(tensor)) => Some(tensor.id()),
        #[cfg(feature = "cubecl-backend")]
        DispatchTensorKind::Cube(BackendTensor::Autodiff(tensor)) => Some(tensor.id()),
        _ => None,
    }
}

/// A step of a capture, applied to a module's parameters.
enum Step<'a> {
    /// Every parameter becomes a placeholder on the capture device.
    Empty { device: &'a Device },
    /// Every placeholder of a trained parameter becomes a leaf of autodiff's graph.
    Lift { strategy: GradientCheckpointingStrategy },
    /// Autodiff is removed again.
    Lower,
}

/// A copy of a module with placeholders for parameters, as leaves of autodiff's graph, in an open capture scope;
/// and those leaves.
pub(super) fn captured_module<M: Module>(
    module: &M,
    parameters: &Parameters,
    device: &Device,
    strategy: GradientCheckpointingStrategy,
) -> Result<(M, Vec<DispatchTensor>), String> {
    // `valid` gives mutable buffers a state of their own (the user's module must not see the capture's updates), and
    // takes autodiff off constants. It also turns flags off.
    let module = module.valid().map(&mut SetFlags(parameters.flags.iter()));
    let (module, _) = map(module, parameters, Step::Empty { device });
    let (module, leaves) = map(module.to_device(device), parameters, Step::Lift { strategy });
    match leaves.len() == parameters.specs.len() {
        true => Ok((module, leaves)),
        false => Err("`Module::visit` and `Module::map` do not go through its parameters in the same order".to_owned()),
    }
}

/// The same module without autodiff.
pub(super) fn lowered_module<M: Module>(module: M, parameters: &Parameters) -> M {
    map(module, parameters, Step::Lower).0
}

/// The tensors that a captured module holds as float parameters and buffers.
pub(super) fn float_edges<M: Module>(module: &M) -> Option<HashSet<TensorId>> {
    let mut held = Some(HashSet::new());
    each_float(module, |_, param| match (edge(param.base().as_dispatch()), &mut held) {
        (Ok(edge), Some(held)) => drop(held.insert(edge.id)),
        _ => held = None,
    });
    held
}

fn map<M: Module>(module: M, parameters: &Parameters, step: Step<'_>) -> (M, Vec<DispatchTensor>) {
    let mut done: Vec<DispatchTensor> = Vec::new();
    let module = with_each(module, |param| {
        let spec = parameters.specs.get(done.len())?;
        let shared = spec.same_as.and_then(|place| done.get(place)).cloned();
        let tensor = || param.base().into_dispatch();
        let next = shared.unwrap_or_else(|| match &step {
            Step::Empty { device } => placeholder(&spec.shape, spec.dtype, device),
            // Buffers stay without autodiff: Burn cannot move tensors under autodiff to the device that they are on.
            Step::Lift { strategy } if spec.trainable => leaf(tensor(), *strategy, true),
            Step::Lift { .. } => tensor(),
            Step::Lower => lowered(tensor()),
        });
        done.push(next.clone());
        Some(AnyTensor::from_dispatch(next))
    });
    (module, done)
}

/// Gives a module's flags these values.
struct SetFlags<'a>(std::slice::Iter<'a, bool>);

impl ModuleMapper for SetFlags<'_> {
    fn map_flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        match self.0.next() {
            Some(&value) => flag.with_value(value),
            None => flag,
        }
    }
}
