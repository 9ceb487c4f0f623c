//! Removes operations whose results nothing reads.
//!
//! Random draws stay, because each advances its generator. So do operations of backend extensions: they may exchange
//! tensors with other ranks, which wait for them whether or not this rank reads the result. The caller leaves out
//! those that it does not need.

use crate::graph::Graph;
use std::collections::HashSet;

pub(super) fn dead(mut graph: Graph) -> Graph {
    let mut needed: HashSet<_> = graph.kept.clone();
    let mut alive = vec![false; graph.nodes.len()];
    for (place, node) in graph.nodes.iter().enumerate().rev() {
        if node.is_custom() || node.draws() || node.outputs.iter().any(|output| needed.contains(&output.id)) {
            alive[place] = true;
            needed.extend(node.reads().map(|tensor| tensor.id));
        }
    }
    let mut alive = alive.into_iter();
    graph.nodes.retain(|_| alive.next().unwrap_or(true));
    graph
}
