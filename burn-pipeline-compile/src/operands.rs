//! Operands of products held in `bf16`, where products round their operands anyway.
//!
//! 1. What a forward computes may be read by its backward as an operand of products alone, itself or views of it: a linear layer's input, an
//!    attention's queries, keys and values. If the forward multiplies it too, it is rounded once, where it is computed, and all of these
//!    products read what was rounded.
//! 2. Views are made anew of what was rounded, up to a reshape that copies: there the copy is rounded.
//!
//! Guarantees: a compiled program that rounds operands gives the same numbers, and holds half of the bytes of each such tensor.
//!
//! Micikevicius et al., Mixed Precision Training (arXiv:1710.03740), hold activations in 16 bits likewise.

use burn::backend::ir::{
    BaseOperationIr, CastOpIr, FloatOperationIr, IrVisitorMut, OperationIr, TensorId, TensorIr, TensorStatus,
};
use burn::tensor::DType;
use std::collections::{HashMap, HashSet};

/// Rewrites a stage's operations, in order, so that what its backward reads only as operands of products is held in `bf16`. `forward`
/// says which operations are the forward's, place by place.
///
/// # Panics
/// If `forward` is shorter than the operations.
pub fn hold_rounded(operations: &[OperationIr], forward: &[bool]) -> Vec<OperationIr> {
    let lies = lying(operations);
    let held = held(operations, forward, &lies);
    let ids = operations.iter().flat_map(OperationIr::nodes).map(|tensor| tensor.id.value() + 1);
    let mut rewriting =
        Rewriting { operations, lies, next: ids.max().unwrap_or(0), rounded: HashMap::new(), to: Vec::new() };
    for op in operations {
        match product(op) {
            Some(operands) => rewriting.product(op, operands.map(|operand| operand.id), &held),
            None => rewriting.to.push(op.clone()),
        }
        for output in op.outputs().filter(|output| held.contains(&output.id)) {
            rewriting.round(output);
        }
    }
    rewriting.to
}

/// What a tensor is a view of.
#[derive(Clone, Copy)]
struct Lies {
    root: TensorId,
    /// Where the view is made, if it is one.
    view: Option<usize>,
    /// Are dimensions swapped or repeated? Then a reshape copies.
    turned: bool,
}

/// How tensors of `f32` lie.
fn lying(operations: &[OperationIr]) -> HashMap<TensorId, Lies> {
    let mut lies: HashMap<TensorId, Lies> = HashMap::new();
    for (place, op) in operations.iter().enumerate() {
        for output in op.outputs().filter(|output| output.dtype == DType::F32) {
            let own = Lies { root: output.id, view: None, turned: false };
            let found = match viewed(op) {
                None => Some(own),
                // A view of what is fed costs nothing, so it is not counted among what is made.
                Some((input, turns)) => lies.get(&input.id).map(|of| match turns {
                    None if of.turned => own,
                    turns => Lies { view: Some(place), turned: of.turned || turns == Some(true), ..*of },
                }),
            };
            lies.extend(found.map(|found| (output.id, found)));
        }
    }
    lies
}

/// What a view is made of; and does it swap or repeat dimensions? `None` for a reshape, which may copy.
fn viewed(op: &OperationIr) -> Option<(&TensorIr, Option<bool>)> {
    let OperationIr::BaseFloat(op) = op else { return None };
    match op {
        BaseOperationIr::Reshape(op) => Some((&op.input, None)),
        BaseOperationIr::SwapDims(op) => Some((&op.input, Some(true))),
        BaseOperationIr::Permute(op) => Some((&op.input, Some(true))),
        BaseOperationIr::Expand(op) => Some((&op.input, Some(true))),
        BaseOperationIr::Slice(op) if op.ranges.iter().all(|range| range.step == 1) => Some((&op.tensor, Some(false))),
        _ => None,
    }
}

/// The operands of a product of `f32` matrices.
fn product(op: &OperationIr) -> Option<[&TensorIr; 2]> {
    let OperationIr::Float(_, FloatOperationIr::Matmul(op)) = op else { return None };
    let operands = [&op.lhs, &op.rhs];
    operands.iter().chain([&&op.out]).all(|tensor| tensor.dtype == DType::F32).then_some(operands)
}

/// What the forward computes and multiplies, and the backward only multiplies.
fn held(operations: &[OperationIr], forward: &[bool], lies: &HashMap<TensorId, Lies>) -> HashSet<TensorId> {
    let (mut made, mut others) = (HashSet::new(), HashSet::new());
    let mut multiplied = [HashSet::new(), HashSet::new()];
    for (place, op) in operations.iter().enumerate() {
        let is_view = op.outputs().any(|output| lies.get(&output.id).is_some_and(|lies| lies.view == Some(place)));
        let roots = op.inputs().filter_map(|read| lies.get(&read.id)).map(|lies| lies.root);
        match product(op) {
            Some(_) => multiplied[usize::from(forward[place])].extend(roots),
            None if !is_view && !forward[place] => others.extend(roots),
            None => {}
        }
        if forward[place] {
            made.extend(op.outputs().map(|output| output.id));
        }
    }
    let [backward, forward] = multiplied;
    backward.into_iter().filter(|id| forward.contains(id) && made.contains(id) && !others.contains(id)).collect()
}

struct Rewriting<'a> {
    operations: &'a [OperationIr],
    lies: HashMap<TensorId, Lies>,
    next: u64,
    rounded: HashMap<TensorId, TensorIr>,
    to: Vec<OperationIr>,
}

impl Rewriting<'_> {
    fn tensor(&mut self, like: &TensorIr, dtype: DType) -> TensorIr {
        self.next += 1;
        TensorIr::uninit(TensorId::new(self.next - 1), like.shape.clone(), dtype)
    }

    fn cast(&mut self, input: &TensorIr, dtype: DType) -> TensorIr {
        let out = self.tensor(input, dtype);
        let input = TensorIr { status: TensorStatus::ReadOnly, ..input.clone() };
        self.to.push(OperationIr::BaseFloat(BaseOperationIr::Cast(CastOpIr { input, out: out.clone() })));
        out
    }

    /// Rounds a tensor that was just made.
    fn round(&mut self, tensor: &TensorIr) {
        let rounded = self.cast(tensor, DType::BF16);
        self.rounded.insert(tensor.id, rounded);
    }

    /// Makes a product read what was rounded.
    fn product(&mut self, op: &OperationIr, operands: [TensorId; 2], held: &HashSet<TensorId>) {
        let mut op = op.clone();
        for operand in operands {
            let found = self.lies.get(&operand).map(|lies| lies.root).filter(|root| held.contains(root));
            if let Some(rounded) = found.and_then(|root| self.rounded.get(&root).cloned()) {
                let widened = self.cast(&rounded, DType::F32);
                let to = self.seen(operand, &widened);
                op.visit_mut(&mut Renamed { from: operand, to });
            }
        }
        self.to.push(op);
    }

    /// The view that a tensor is of its root, made of the root's rounded values.
    fn seen(&mut self, tensor: TensorId, root: &TensorIr) -> TensorId {
        let view = self.lies.get(&tensor).and_then(|lies| lies.view).map(|place| self.operations[place].clone());
        let Some((mut op, input)) = view.and_then(|op| viewed(&op).map(|(input, _)| input.id).map(|id| (op, id)))
        else {
            return root.id;
        };
        let to = self.seen(input, root);
        op.visit_mut(&mut Renamed { from: input, to });
        self.next += 1;
        let to = TensorId::new(self.next - 1);
        op.visit_mut(&mut Renamed { from: tensor, to });
        self.to.push(op);
        to
    }
}

struct Renamed {
    from: TensorId,
    to: TensorId,
}

impl IrVisitorMut for Renamed {
    fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
        if tensor.id == self.from {
            tensor.id = self.to;
        }
    }
}
