//! Lets matmuls that round their operands to `bf16` read `bf16` operands directly.
//!
//! A cast from `bf16` to `f32` is removed if only matmuls read its result, directly or through views. Other matmuls
//! would add in another order without the cast, and a cast whose result another program reads stays. So bits would
//! depend on how a backward is cut into programs.

use super::replace::Replaced;
use crate::graph::{Graph, Map, Node, Op, is_float};
use crate::half::Half;
use burn::backend::ir::{TensorId, TensorIr};
use std::collections::HashSet;

pub(super) fn widened(graph: Graph) -> Graph {
    if graph.rounded.is_none_or(|found| !found.rounds()) {
        return graph;
    }
    let others = read_by_others(&graph);
    let mut replaced = Replaced::default();
    let mut nodes = Vec::with_capacity(graph.nodes.len());
    for mut node in graph.nodes {
        replaced.apply(&mut node);
        let found = widens(&node).filter(|(_, half)| *half == Half::Bf16 && !others.contains(&node.output().id));
        if let Some((input, _)) = found {
            replaced.add(node.output(), input);
            continue;
        }
        let of = node.reads().next().map(|input| input.dtype).filter(|_| matches!(node.op, Op::View(_)));
        if let Some(dtype) = of.filter(|dtype| *dtype != node.output().dtype) {
            node.outputs[0].dtype = dtype;
            replaced.add(node.output(), node.output());
        }
        nodes.push(node);
    }
    Graph { nodes, ..graph }
}

/// The input of a cast from half precision to `f32`, and its type.
pub(crate) fn widens(node: &Node) -> Option<(&TensorIr, Half)> {
    let input = node.inputs.first()?.tensor()?;
    let half = Half::of(input)?;
    (node.op == Op::Map(Map::Copy) && is_float(node.output())).then_some((input, half))
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
