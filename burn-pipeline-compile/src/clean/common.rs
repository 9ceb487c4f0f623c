//! Computes equal nodes once.
//!
//! Nodes are equal if operation, inputs, shape and type are. A later one is removed, and its readers read the first
//! one's result. Kept tensors and interpreted operations stay.

use super::replace::without;
use crate::graph::{Graph, Node, Op, Operand};
use burn::backend::ir::TensorIr;
use std::collections::HashMap;

pub(super) fn common(graph: Graph) -> Graph {
    let mut seen: HashMap<String, TensorIr> = HashMap::new();
    let kept = graph.kept.clone();
    without(graph, |node| {
        let (key, output) = (key(node)?, node.output());
        let first = seen.get(&key).filter(|_| !kept.contains(&output.id)).cloned();
        if first.is_none() {
            seen.insert(key, output.clone());
        }
        first
    })
}

/// A key that is equal for nodes that compute the same value.
fn key(node: &Node) -> Option<String> {
    if matches!(node.op, Op::Interpret(_)) {
        return None;
    }
    let operand = |input: &Operand| match input {
        Operand::Tensor(tensor) => format!("%{}", tensor.id.value()),
        Operand::Scalar(value) => format!("{:x}", value.to_bits()),
    };
    let fill = if let Op::Fill(value) = node.op { value.to_bits() } else { 0 };
    let inputs: Vec<String> = node.inputs.iter().map(operand).collect();
    let output = node.output();
    Some(format!("{:?} {fill:x} {inputs:?} {:?} {:?}", node.op, output.shape, output.dtype))
}
