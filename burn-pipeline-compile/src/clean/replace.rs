//! Replaces tensors by equal ones in the nodes that read them, interpreted ones included.

use crate::graph::{Graph, Node, Op, Operand};
use burn::backend::ir::{IrVisitorMut, TensorId, TensorIr};
use std::collections::HashMap;

/// Replacements of tensors by others of the same shape and type.
#[derive(Default)]
pub(super) struct Replaced(HashMap<TensorId, TensorIr>);

impl Replaced {
    /// Replaces `tensor` by `by` from now on.
    pub(super) fn add(&mut self, tensor: &TensorIr, by: &TensorIr) {
        let by = self.0.get(&by.id).unwrap_or(by).clone();
        self.0.insert(tensor.id, by);
    }

    /// Applies the replacements to a node's inputs.
    pub(super) fn apply(&mut self, node: &mut Node) {
        for input in &mut node.inputs {
            if let Operand::Tensor(tensor) = input
                && let Some(by) = self.0.get(&tensor.id)
            {
                *tensor = by.clone();
            }
        }
        if let Op::Interpret(op) = &mut node.op {
            op.visit_mut(self);
        }
    }
}

impl IrVisitorMut for Replaced {
    fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
        if let Some(by) = self.0.get(&tensor.id) {
            tensor.id = by.id;
        }
    }
}

/// Removes the nodes whose output equals another tensor, which `same` finds. Kept tensors stay.
pub(super) fn without(graph: Graph, mut same: impl FnMut(&Node) -> Option<TensorIr>) -> Graph {
    let mut replaced = Replaced::default();
    let mut nodes = Vec::with_capacity(graph.nodes.len());
    for mut node in graph.nodes {
        replaced.apply(&mut node);
        match same(&node) {
            Some(by) if !graph.kept.contains(&node.output().id) => replaced.add(node.output(), &by),
            _ => nodes.push(node),
        }
    }
    Graph { nodes, ..graph }
}
