//! Keeps operands of matmuls in `bf16`, if matmuls round their operands anyway.
//!
//! 1. The backward may read a tensor of the forward only as an operand of matmuls, directly or through views: for
//!    example, a linear layer's input, or an attention's queries, keys and values. If the forward multiplies the
//!    tensor too, it is rounded once, where it is computed, and all of these matmuls read the rounded tensor.
//! 2. Views are rebuilt from the rounded tensor, up to a reshape that copies: there the copy is rounded.
//!
//! Guarantees: a compiled program that rounds operands gives the same numbers, and keeps half of the bytes of each
//! such tensor.
//!
//! Micikevicius et al., Mixed Precision Training (arXiv:1710.03740), also keep activations in 16 bits.

use crate::hold::{Renamed, next_id};
use burn::backend::ir::{BaseOperationIr, CastOpIr, FloatOperationIr, OperationIr, TensorId, TensorIr, TensorStatus};
use burn::tensor::DType;
use std::collections::{HashMap, HashSet};

/// Rewrites a stage's operations, in order, so that tensors that its backward reads only as operands of matmuls are
/// kept in `bf16`. `forward` marks the operations of the forward, by index.
///
/// # Panics
/// Panics if `forward` is shorter than the operations.
pub fn hold_rounded(operations: &[OperationIr], forward: &[bool]) -> Vec<OperationIr> {
    let views = view_of(operations);
    let held = held(operations, forward, &views);
    let next = next_id(operations);
    let mut rewriting = Rewriting { operations, views, next, rounded: HashMap::new(), to: Vec::new() };
    for op in operations {
        match matmul(op) {
            Some(operands) => rewriting.matmul(op, operands.map(|operand| operand.id), &held),
            None => rewriting.to.push(op.clone()),
        }
        for output in op.outputs().filter(|output| held.contains(&output.id)) {
            let rounded = rewriting.cast(output, DType::BF16);
            rewriting.rounded.insert(output.id, rounded);
        }
    }
    rewriting.to
}

/// The tensor that another tensor is a view of.
#[derive(Clone, Copy)]
struct ViewInfo {
    root: TensorId,
    /// The index of the operation that makes the view, if it is one.
    view: Option<usize>,
    /// True if dimensions are swapped or repeated, so that a reshape copies.
    transposed: bool,
}

/// The view information of all `f32` tensors.
fn view_of(operations: &[OperationIr]) -> HashMap<TensorId, ViewInfo> {
    let mut views: HashMap<TensorId, ViewInfo> = HashMap::new();
    for (place, op) in operations.iter().enumerate() {
        for output in op.outputs().filter(|output| output.dtype == DType::F32) {
            let own = ViewInfo { root: output.id, view: None, transposed: false };
            let found = match viewed(op) {
                None => Some(own),
                // A view of a fed tensor costs nothing, so it does not count as made by the forward.
                Some((input, transposes)) => views.get(&input.id).map(|of| match transposes {
                    None if of.transposed => own,
                    transposes => {
                        ViewInfo { view: Some(place), transposed: of.transposed || transposes == Some(true), ..*of }
                    }
                }),
            };
            views.extend(found.map(|found| (output.id, found)));
        }
    }
    views
}

/// The input of a view, and whether it swaps or repeats dimensions; `None` for a reshape, which may copy.
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

/// The operands of an `f32` matmul.
fn matmul(op: &OperationIr) -> Option<[&TensorIr; 2]> {
    let OperationIr::Float(_, FloatOperationIr::Matmul(op)) = op else { return None };
    let operands = [&op.lhs, &op.rhs];
    operands.iter().chain([&&op.out]).all(|tensor| tensor.dtype == DType::F32).then_some(operands)
}

/// The tensors that the forward computes and multiplies, and the backward only multiplies.
fn held(operations: &[OperationIr], forward: &[bool], views: &HashMap<TensorId, ViewInfo>) -> HashSet<TensorId> {
    let (mut made, mut others) = (HashSet::new(), HashSet::new());
    let mut multiplied = [HashSet::new(), HashSet::new()];
    for (place, op) in operations.iter().enumerate() {
        let is_view = op.outputs().any(|output| views.get(&output.id).is_some_and(|info| info.view == Some(place)));
        let roots = op.inputs().filter_map(|read| views.get(&read.id)).map(|info| info.root);
        match matmul(op) {
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
    views: HashMap<TensorId, ViewInfo>,
    next: u64,
    rounded: HashMap<TensorId, TensorIr>,
    to: Vec<OperationIr>,
}

impl Rewriting<'_> {
    /// The id of a new tensor.
    fn id(&mut self) -> TensorId {
        self.next += 1;
        TensorId::new(self.next - 1)
    }

    fn cast(&mut self, input: &TensorIr, dtype: DType) -> TensorIr {
        let out = TensorIr::uninit(self.id(), input.shape.clone(), dtype);
        let input = TensorIr { status: TensorStatus::ReadOnly, ..input.clone() };
        self.to.push(OperationIr::BaseFloat(BaseOperationIr::Cast(CastOpIr { input, out: out.clone() })));
        out
    }

    /// Makes a matmul read rounded tensors.
    fn matmul(&mut self, op: &OperationIr, operands: [TensorId; 2], held: &HashSet<TensorId>) {
        let mut op = op.clone();
        for operand in operands {
            let found = self.views.get(&operand).map(|info| info.root).filter(|root| held.contains(root));
            if let Some(rounded) = found.and_then(|root| self.rounded.get(&root).cloned()) {
                let widened = self.cast(&rounded, DType::F32);
                let to = self.rebuilt_view(operand, &widened);
                op.visit_mut(&mut Renamed { from: operand, to });
            }
        }
        self.to.push(op);
    }

    /// Rebuilds a tensor's view of its root from the root's rounded values.
    fn rebuilt_view(&mut self, tensor: TensorId, root: &TensorIr) -> TensorId {
        let view = self.views.get(&tensor).and_then(|info| info.view).map(|place| self.operations[place].clone());
        let Some((mut op, input)) = view.and_then(|op| viewed(&op).map(|(input, _)| input.id).map(|id| (op, id)))
        else {
            return root.id;
        };
        let to = self.rebuilt_view(input, root);
        op.visit_mut(&mut Renamed { from: input, to });
        let to = self.id();
        op.visit_mut(&mut Renamed { from: tensor, to });
        self.to.push(op);
        to
    }
}
