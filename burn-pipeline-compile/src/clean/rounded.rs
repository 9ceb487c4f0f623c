//! Lets matmuls read operands that are kept in `bf16` directly, if they round their operands anyway.
//!
//! 1. A cast to `bf16` becomes part of the region that computes its input.
//! 2. A cast from `bf16` to `f32` is removed if only matmuls read its result, directly or through views.

use super::replace::Replaced;
use crate::graph::{Graph, Map, Node, Op, Operand, is_float, is_rounded};
use burn::backend::ir::{BaseOperationIr, CastOpIr, OperationIr, TensorId};
use burn::tensor::DType;
use std::collections::HashSet;

pub(super) fn rounded(mut graph: Graph) -> Graph {
    if graph.rounded.is_none() {
        return graph;
    }
    for node in &mut graph.nodes {
        let rounds = |cast: &&CastOpIr| is_float(&cast.input) && is_rounded(&cast.out);
        if let Some(cast) = cast(node).filter(rounds)
            && cast.out.shape.num_elements() > 0
            && !cast.out.shape.is_empty()
        {
            *node = Node::new(Op::Map(Map::Copy), vec![Operand::Tensor(cast.input.clone())], cast.out.clone());
        }
    }
    let others = read_by_others(&graph);
    let mut replaced = Replaced::default();
    let mut nodes = Vec::with_capacity(graph.nodes.len());
    for mut node in graph.nodes {
        replaced.apply(&mut node);
        let widens =
            |cast: &&CastOpIr| is_rounded(&cast.input) && is_float(&cast.out) && !others.contains(&cast.out.id);
        if let Some(cast) = cast(&node).filter(widens) {
            replaced.add(&cast.out, &cast.input);
            continue;
        }
        let of_rounded = matches!(node.op, Op::View(_)) && node.reads().any(is_rounded);
        if of_rounded && is_float(node.output()) {
            node.outputs[0].dtype = DType::BF16;
            replaced.add(node.output(), node.output());
        }
        nodes.push(node);
    }
    Graph { nodes, ..graph }
}

fn cast(node: &Node) -> Option<&CastOpIr> {
    let Op::Interpret(op) = &node.op else { return None };
    match op.as_ref() {
        OperationIr::BaseFloat(BaseOperationIr::Cast(op)) => Some(op),
        _ => None,
    }
}

/// Tensors that are kept, or that have readers other than matmuls, directly or through views.
fn read_by_others(graph: &Graph) -> HashSet<TensorId> {
    let mut others = graph.kept.clone();
    // Readers come later in the order, so it is walked backwards.
    for node in graph.nodes.iter().rev() {
        let passes = match &node.op {
            Op::Matmul => true,
            Op::View(_) => !others.contains(&node.output().id),
            _ => false,
        };
        if !passes {
            others.extend(node.reads().map(|read| read.id));
        }
    }
    others
}
