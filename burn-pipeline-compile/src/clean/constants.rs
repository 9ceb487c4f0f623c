//! Moves known values into the operations that read them.
//!
//! 1. A function of constants is a constant, and so is a view of one.
//! 2. A function that reads a constant takes it as a scalar.
//! 3. A division by a constant becomes a multiplication by its inverse, which differs at most in the last bit. Not in
//!    half precision, where the last bit can decide how a quotient is rounded.

use crate::graph::{Graph, Map, Node, Op, Operand, is_float, is_number};
use crate::half::Half;
use crate::tile::evaluate;
use burn::backend::ir::TensorId;
use std::collections::HashMap;

pub(super) fn constants(mut graph: Graph) -> Graph {
    let mut known: HashMap<TensorId, f32> = HashMap::new();
    for node in &mut graph.nodes {
        let tensor = |input: &Operand| input.tensor().and_then(|tensor| known.get(&tensor.id)).copied();
        match &node.op {
            Op::Map(_) => {
                for input in &mut node.inputs {
                    if let Some(value) = tensor(input) {
                        *input = Operand::Scalar(value);
                    }
                }
            }
            Op::View(_) => {
                if let Some(value) = tensor(&node.inputs[0]) {
                    (node.op, node.inputs) = (Op::Fill(value), Vec::new());
                }
            }
            _ => {}
        }
        if let Some(value) = folded(node) {
            (node.op, node.inputs) = (Op::Fill(value), Vec::new());
        }
        multiplied(node);
        if let Op::Fill(value) = node.op {
            known.insert(node.output().id, value);
        }
    }
    graph
}

/// The value of a function of constants.
fn folded(node: &Node) -> Option<f32> {
    let Op::Map(map) = node.op else { return None };
    let values: Vec<f32> = node.inputs.iter().map(Operand::scalar).collect::<Option<_>>()?;
    let output = node.output();
    let rounded = |value| Half::of(output).map_or(value, |half| half.rounded(value));
    is_number(output).then(|| rounded(evaluate(map, &values)))
}

/// Turns a division by a scalar into a multiplication, if the inverse is a normal number.
fn multiplied(node: &mut Node) {
    if let (Op::Map(Map::Div), Some(Operand::Scalar(value))) = (&node.op, node.inputs.get(1))
        && is_float(node.output())
    {
        let inverse = value.recip();
        if inverse.is_normal() {
            node.inputs[1] = Operand::Scalar(inverse);
            node.op = Op::Map(Map::Mul);
        }
    }
}
