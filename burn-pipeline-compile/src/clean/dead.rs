//! What nothing reads is not computed.
//!
//! Random draws stay: each moves its generator on.

use crate::graph::{Graph, Node, Op};
use burn::backend::ir::{FloatOperationIr, NumericOperationIr, OperationIr};
use std::collections::HashSet;

pub(super) fn dead(mut graph: Graph) -> Graph {
    let mut needed: HashSet<_> = graph.kept.clone();
    let mut alive = vec![false; graph.nodes.len()];
    for (place, node) in graph.nodes.iter().enumerate().rev() {
        if draws(node) || node.outputs.iter().any(|output| needed.contains(&output.id)) {
            alive[place] = true;
            needed.extend(node.reads().map(|tensor| tensor.id));
        }
    }
    let mut alive = alive.into_iter();
    graph.nodes.retain(|_| alive.next().unwrap_or(true));
    graph
}

fn draws(node: &Node) -> bool {
    let Op::Interpret(op) = &node.op else { return false };
    matches!(
        **op,
        OperationIr::Float(_, FloatOperationIr::Random(_))
            | OperationIr::NumericInt(_, NumericOperationIr::IntRandom(_))
    )
}
