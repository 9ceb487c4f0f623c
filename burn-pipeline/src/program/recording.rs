//! The result of a capture: operations, constants, and the tensors at the edges.
//!
//! Guarantees: tensors are numbered from 0 in order of appearance, so that two captures of one stage are equal; the
//! operations that made placeholders are removed. Two recordings that [`Recording::difference`] finds equal compute
//! the same numbers from the same inputs. It compares operations, their order, sizes, scalars (to the last bit),
//! constants and edges.

use super::custom::CustomOps;
use super::draws::{Draw, draw};
use burn::backend::ir::{IrVisitorMut, NumericOperationIr, OperationIr, ScalarIr, TensorId, TensorIr, TensorStatus};
use burn::tensor::{DType, TensorData};
use burn_pipeline_compile::operation_name;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// The tensors that enter and leave a captured stage.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Edges {
    /// Tensors of input, extra and target, in this order.
    pub(crate) inputs: Vec<TensorIr>,
    /// Parameters and buffers, in visiting order.
    pub(crate) parameters: Vec<TensorIr>,
    /// The gradient of each output; `None` if it is not used.
    pub(crate) seeds: Vec<Option<TensorIr>>,
    /// Outputs; or the loss, and its weight if it is computed.
    pub(crate) outputs: Vec<TensorIr>,
    /// The gradient of each tensor of the input.
    pub(crate) input_gradients: Vec<Option<TensorIr>>,
    /// The gradients of parameters, with the parameter's index.
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
    /// The values that the stage brought from the host, in order of appearance.
    pub(crate) constants: Vec<(TensorId, Arc<TensorData>)>,
    pub(crate) edges: Edges,
    pub(crate) custom: CustomOps,
    /// The bits of all scalars, in order: `0.0` and `-0.0` compare equal, but give different results.
    scalars: Vec<u64>,
}

impl Recording {
    /// Makes a recording from the operations and initial values of a capture scope.
    pub(crate) fn new(
        mut operations: Vec<OperationIr>,
        values: BTreeMap<TensorId, TensorData>,
        mut edges: Edges,
        custom: CustomOps,
    ) -> Self {
        let fed: HashSet<TensorId> = edges.fed().map(|tensor| tensor.id).collect();
        // Placeholders and constants are fed, not computed.
        let is_fed = |op: &OperationIr| op.outputs().any(|output| fed.contains(&output.id));
        operations.retain(|op| !matches!(op, OperationIr::Init(_)) && !is_fed(op));
        let mut numbers = Numbers::default();
        // Fed tensors are numbered first, the others where operations make them.
        edges.fed_mut().for_each(|tensor| numbers.visit_tensor_mut(tensor));
        operations.iter_mut().for_each(|op| op.visit_mut(&mut numbers));
        edges.made_mut().for_each(|tensor| numbers.visit_tensor_mut(tensor));
        let (known, scalars) = (numbers.known, numbers.scalars);
        let constant = |(id, data)| Some((*known.get(&id)?, Arc::new(data)));
        let mut constants: Vec<_> = values.into_iter().filter_map(constant).collect();
        constants.sort_unstable_by_key(|(id, _)| id.value());
        Self { operations, constants, edges, custom, scalars }
    }

    /// The same constants and edges with other operations.
    pub(crate) fn rewritten(&self, operations: Vec<OperationIr>) -> Self {
        Self { operations, ..self.clone() }
    }

    /// Says what differs from another recording; `None` if both compute the same.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        let operations = self.operations.iter().zip(&other.operations).enumerate();
        for (place, (mine, theirs)) in operations {
            if !same(mine, theirs) {
                return Some(format!("operation {place} was {} and is {}", described(theirs), described(mine)));
            }
        }
        let (mine, theirs) = (self.operations.len(), other.operations.len());
        if mine != theirs {
            return Some(format!("it had {theirs} operations and has {mine}"));
        }
        if self.scalars != other.scalars {
            return Some("a scalar changed its sign or its kind of NaN".to_owned());
        }
        if self.constants != other.constants {
            return Some("the values of a tensor that it brings from the host changed".to_owned());
        }
        (self.edges != other.edges || self.custom != other.custom)
            .then(|| "which tensors it returns, or which of them have a gradient, changed".to_owned())
    }

    /// The same recording without the gradients of the outputs at these indices, as autodiff would compute it: an
    /// operation whose gradients are all absent is not computed, and a sum with an absent gradient becomes the other
    /// one. Tensors keep their numbers. `None` if another operation joins an absent gradient with a present one.
    pub(crate) fn without(&self, absent: &[usize]) -> Option<Self> {
        let seeds = |wanted: &dyn Fn(usize) -> bool| -> HashSet<TensorId> {
            let seeds = self.edges.seeds.iter().enumerate().filter(|(place, _)| wanted(*place));
            seeds.filter_map(|(_, seed)| Some(seed.as_ref()?.id)).collect()
        };
        let (mut gradients, mut gone) = (seeds(&|_| true), seeds(&|place| absent.contains(&place)));
        let mut renamed = Renamed::default();
        let mut operations = Vec::with_capacity(self.operations.len());
        for op in &self.operations {
            let read: Vec<TensorId> = op.inputs().map(|input| input.id).filter(|id| gradients.contains(id)).collect();
            let made: Vec<TensorId> = op.outputs().map(|output| output.id).collect();
            if !read.is_empty() {
                gradients.extend(&made);
            }
            match (read.iter().any(|id| gone.contains(id)), read.iter().all(|id| gone.contains(id))) {
                (false, _) => {
                    let mut op = op.clone();
                    op.visit_mut(&mut renamed);
                    operations.push(op);
                }
                (true, true) => gone.extend(made),
                (true, false) => {
                    let OperationIr::NumericFloat(_, NumericOperationIr::Add(sum)) = op else { return None };
                    let left = if gone.contains(&sum.lhs.id) { &sum.rhs } else { &sum.lhs };
                    if left.shape != sum.out.shape || left.dtype != sum.out.dtype {
                        return None;
                    }
                    renamed.0.insert(sum.out.id, renamed.of(left.id));
                }
            }
        }
        let mut edges = self.edges.clone();
        edges.input_gradients.iter_mut().for_each(|edge| {
            edge.take_if(|edge| gone.contains(&edge.id));
        });
        edges.weight_gradients.retain(|(_, edge)| !gone.contains(&edge.id));
        edges.made_mut().for_each(|tensor| tensor.id = renamed.of(tensor.id));
        let (constants, custom, scalars) = (self.constants.clone(), self.custom.clone(), self.scalars.clone());
        Some(Self { operations, constants, edges, custom, scalars })
    }

    /// The float types of its operations' inputs and results, each with the name of the first operation that has it.
    pub(crate) fn float_types(&self) -> Vec<(String, DType)> {
        let mut types: Vec<(String, DType)> = Vec::new();
        for op in &self.operations {
            for tensor in op.inputs().chain(op.outputs()).filter(|tensor| tensor.dtype.is_float()) {
                if types.iter().all(|(_, known)| *known != tensor.dtype) {
                    types.push((operation_name(op), tensor.dtype));
                }
            }
        }
        types
    }

    /// The random draws of its forward, in order: shape and element type, and the distribution.
    pub(crate) fn draws(&self) -> impl Iterator<Item = Draw<'_>> {
        self.operations.iter().filter_map(draw)
    }
}

/// Returns true if both are the same operation. NaN equals NaN here.
fn same(mine: &OperationIr, theirs: &OperationIr) -> bool {
    mine == theirs || {
        let (mine, theirs) = (format!("{mine:?}"), format!("{theirs:?}"));
        mine == theirs && mine.contains("NaN")
    }
}

/// An operation with its scalars and sizes, short enough for a message.
fn described(op: &OperationIr) -> String {
    let text = format!("{op:?}");
    let end = text.char_indices().nth(400).map_or(text.len(), |(end, _)| end);
    format!("{}: {}", operation_name(op), &text[..end])
}

/// Tensors that are read in place of others.
#[derive(Default)]
struct Renamed(HashMap<TensorId, TensorId>);

impl Renamed {
    fn of(&self, id: TensorId) -> TensorId {
        self.0.get(&id).copied().unwrap_or(id)
    }
}

impl IrVisitorMut for Renamed {
    fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
        tensor.id = self.of(tensor.id);
    }
}

/// Numbers tensors in order of appearance, and notes scalars.
#[derive(Default)]
struct Numbers {
    known: HashMap<TensorId, TensorId>,
    scalars: Vec<u64>,
}

impl IrVisitorMut for Numbers {
    fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
        let next = TensorId::new(self.known.len() as u64);
        tensor.id = *self.known.entry(tensor.id).or_insert(next);
        tensor.status = TensorStatus::ReadOnly;
    }

    fn visit_scalar_mut(&mut self, scalar: &mut ScalarIr) {
        self.scalars.push(match scalar {
            ScalarIr::Float(value) => value.to_bits(),
            ScalarIr::Int(value) => value.cast_unsigned(),
            ScalarIr::UInt(value) => *value,
            ScalarIr::Bool(value) => u64::from(*value),
        });
    }
}
