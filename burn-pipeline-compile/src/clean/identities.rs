//! Removes operations that change nothing.
//!
//! 1. `x + (-0)`, `x - 0` (`x + 0` would change -0), `x * 1`, a copy, a reduction along dimensions of size 1, a view of
//!    the same shape: their readers read `x` instead. If `x` is smaller than the result, it is expanded.
//! 2. A sum of a sum along other dimensions becomes one sum, if nothing else reads the inner sum and the last
//!    dimension is not summed.

use super::replace::without;
use crate::graph::{Graph, Map, Node, Op, Operand, Reduction, View};
use burn::backend::ir::TensorIr;

pub(super) fn identities(mut graph: Graph) -> Graph {
    for node in &mut graph.nodes {
        if let Some(tensor) = unchanged(node)
            && tensor.shape != node.output().shape
        {
            (node.op, node.inputs) = (Op::View(View::Expand), vec![Operand::Tensor(tensor)]);
        }
    }
    sums(without(graph, |node| unchanged(node).filter(|tensor| tensor.shape == node.output().shape)))
}

/// The tensor that a node's output equals, except for its shape.
fn unchanged(node: &Node) -> Option<TensorIr> {
    let input = |place: usize| node.inputs[place].tensor().cloned();
    let scalar = |place: usize| node.inputs[place].scalar();
    let zero = |place: usize, zero: f32| scalar(place).is_some_and(|value| value.to_bits() == zero.to_bits());
    let found = match &node.op {
        Op::Map(Map::Copy) => input(0),
        Op::Map(Map::Add) if zero(1, -0.0) => input(0),
        Op::Map(Map::Add) if zero(0, -0.0) => input(1),
        Op::Map(Map::Sub) if zero(1, 0.0) => input(0),
        Op::Map(Map::Mul | Map::Div) if scalar(1) == Some(1.0) => input(0),
        Op::Map(Map::Mul) if scalar(0) == Some(1.0) => input(1),
        Op::Reduce(_, dims) => input(0).filter(|tensor| dims.iter().all(|&dim| tensor.shape[dim] == 1)),
        Op::View(View::Reshape | View::Expand | View::Slice(_)) => {
            input(0).filter(|tensor| tensor.shape == node.output().shape)
        }
        _ => None,
    };
    found.filter(|tensor| tensor.dtype == node.output().dtype)
}

fn sums(mut graph: Graph) -> Graph {
    let (makers, uses) = (graph.makers(), graph.uses());
    for place in 0..graph.nodes.len() {
        let Some((dims, input)) = leading_sum(&graph.nodes[place]) else { continue };
        let Some(&maker) = makers.get(&input.id).filter(|_| uses.get(&input.id) == Some(&1)) else { continue };
        let Some((inner, of)) = leading_sum(&graph.nodes[maker]) else { continue };
        let mut all = [dims, inner].concat();
        all.sort_unstable();
        all.dedup();
        graph.nodes[place].op = Op::Reduce(Reduction::Sum, all);
        graph.nodes[place].inputs = vec![Operand::Tensor(of)];
    }
    graph
}

/// The dimensions and the input of a sum that does not sum the last dimension.
fn leading_sum(node: &Node) -> Option<(Vec<usize>, TensorIr)> {
    let Op::Reduce(Reduction::Sum, dims) = &node.op else { return None };
    let input = node.inputs[0].tensor()?.clone();
    let last = input.shape.num_dims() - 1;
    (!dims.contains(&last)).then(|| (dims.clone(), input))
}
