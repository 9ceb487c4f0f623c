//! The result of a capture: operations, constants, and the tensors at the edges.
//!
//! Guarantees: tensors are numbered from 0 in order of appearance, so that two captures of one stage are equal;
//! the operations that made placeholders are removed.

use super::custom::CustomOps;
use burn::backend::ir::{IrVisitorMut, OperationIr, TensorId, TensorIr, TensorStatus};
use burn::tensor::TensorData;
use std::collections::{BTreeMap, HashMap, HashSet};

/// The tensors that go into and come out of a captured stage.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Edges {
    /// Tensors of input, extra and target, in this order.
    pub(crate) inputs: Vec<TensorIr>,
    /// Parameters and buffers, in visiting order.
    pub(crate) parameters: Vec<TensorIr>,
    /// The gradient of each output; `None` where it plays no part.
    pub(crate) seeds: Vec<Option<TensorIr>>,
    /// Outputs; or the loss, and its weight if that is computed.
    pub(crate) outputs: Vec<TensorIr>,
    /// The gradient of each tensor of the input.
    pub(crate) input_gradients: Vec<Option<TensorIr>>,
    /// The gradients of parameters, with the parameter's place.
    pub(crate) weight_gradients: Vec<(usize, TensorIr)>,
}

impl Edges {
    fn fed(&self) -> impl Iterator<Item = &TensorIr> {
        self.inputs.iter().chain(&self.parameters).chain(self.seeds.iter().flatten())
    }

    fn fed_mut(&mut self) -> impl Iterator<Item = &mut TensorIr> {
        self.inputs.iter_mut().chain(&mut self.parameters).chain(self.seeds.iter_mut().flatten())
    }

    fn made_mut(&mut self) -> impl Iterator<Item = &mut TensorIr> {
        let gradients = self.weight_gradients.iter_mut().map(|(_, gradient)| gradient);
        self.outputs.iter_mut().chain(self.input_gradients.iter_mut().flatten()).chain(gradients)
    }
}

/// A captured stage.
#[derive(Clone, Debug)]
pub(crate) struct Recording {
    pub(crate) operations: Vec<OperationIr>,
    pub(crate) constants: Vec<(TensorId, TensorData)>,
    pub(crate) edges: Edges,
    /// Its custom operations.
    pub(crate) custom: CustomOps,
}

impl Recording {
    /// From the operations and initial values of a capture scope.
    pub(crate) fn new(
        mut operations: Vec<OperationIr>,
        values: BTreeMap<TensorId, TensorData>,
        mut edges: Edges,
        custom: CustomOps,
    ) -> Self {
        let fed: HashSet<TensorId> = edges.fed().map(|tensor| tensor.id).collect();
        // Placeholders and constants are fed, not made.
        let is_fed = |op: &OperationIr| op.outputs().any(|output| fed.contains(&output.id));
        operations.retain(|op| !matches!(op, OperationIr::Init(_)) && !is_fed(op));
        let mut numbers = Numbers::default();
        // What is fed is numbered first, the rest where operations make it.
        edges.fed_mut().for_each(|tensor| numbers.visit_tensor_mut(tensor));
        operations.iter_mut().for_each(|op| op.visit_mut(&mut numbers));
        edges.made_mut().for_each(|tensor| numbers.visit_tensor_mut(tensor));
        let constants = values.into_iter().filter_map(|(id, data)| Some((*numbers.0.get(&id)?, data))).collect();
        Self { operations, constants, edges, custom }
    }
}

/// Numbers tensors in order of appearance.
#[derive(Default)]
struct Numbers(HashMap<TensorId, TensorId>);

impl IrVisitorMut for Numbers {
    fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
        let next = TensorId::new(self.0.len() as u64);
        tensor.id = *self.0.entry(tensor.id).or_insert(next);
        tensor.status = TensorStatus::ReadOnly;
    }
}
