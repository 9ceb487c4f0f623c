//! Stores results of regions in `bf16` for matmuls that round their operands anyway: a region then writes, and each
//! matmul reads, half of the bytes.
//!
//! An element-wise result gets a rounded copy if several matmuls read it, or if nothing but one matmul reads it.
//! Matmuls read the copy, also through views that only they read. Kept tensors get no copy: they are stored as they are
//! in any case.
//!
//! Guarantees: a matmul's numbers stay the same, because it would round the operand in the same way. Only subnormal
//! numbers from 2⁻¹²⁶ − 2⁻¹³⁴ on differ: they are rounded to 2⁻¹²⁶ here, and to 0 by a matmul. So with such numbers a
//! matmul's bits depend on whether its operand is kept.

use crate::graph::{Graph, Map, Node, Op, Operand, Part, Writer, is_float};
use burn::backend::ir::{TensorId, TensorIr};
use burn::tensor::DType;
use std::collections::HashMap;
use std::iter::repeat_n;

/// How a tensor is read, directly or through views.
#[derive(Clone, Copy, Default)]
struct Reads {
    /// How often a matmul multiplies it.
    matmuls: usize,
    /// True if something else reads it, or if it is kept.
    others: bool,
}

impl Reads {
    /// Returns true if a rounded copy saves more than it costs.
    fn pay(self) -> bool {
        self.matmuls > 1 || self.matmuls == 1 && !self.others
    }

    fn are_matmuls(self) -> bool {
        self.matmuls > 0 && !self.others
    }
}

pub(super) fn narrowed(graph: Graph) -> Graph {
    if !graph.rounded.is_some_and(|found| found.rounds()) {
        return graph;
    }
    let reads = reads(&graph);
    let of = |id: TensorId| reads.get(&id).copied().unwrap_or_default();
    let mut copies: HashMap<TensorId, TensorIr> = HashMap::new();
    let mut to = Writer { nodes: Vec::with_capacity(graph.nodes.len()), fresh: graph.fresh };
    for mut node in graph.nodes {
        let passes = matches!(node.op, Op::View(_)) && of(node.output().id).are_matmuls();
        let multiplied = multiplied(&node);
        for (input, multiplied) in node.inputs.iter_mut().zip(multiplied) {
            if let Operand::Tensor(tensor) = input
                && let Some(copy) = copies.get(&tensor.id).filter(|_| multiplied || passes)
            {
                *tensor = copy.clone();
            }
        }
        if passes && node.reads().next().is_some_and(|input| input.dtype == DType::BF16) {
            node.outputs[0].dtype = DType::BF16;
            copies.insert(node.output().id, node.output().clone());
        }
        let made = Some(&node).filter(|node| matches!(node.op, Op::Map(_))).map(|node| node.output().clone());
        to.nodes.push(node);
        if let Some(made) = made.filter(|made| is_float(made) && !graph.kept.contains(&made.id) && of(made.id).pay()) {
            let copy = to.make(Op::Map(Map::Copy), [&made], made.shape.clone(), DType::BF16);
            copies.insert(made.id, copy);
        }
    }
    Graph { nodes: to.nodes, fresh: to.fresh, ..graph }
}

/// The reads of all tensors. Readers come later in the order, so it is walked backwards.
fn reads(graph: &Graph) -> HashMap<TensorId, Reads> {
    let mut reads: HashMap<TensorId, Reads> = HashMap::new();
    graph.kept.iter().for_each(|id| reads.entry(*id).or_default().others = true);
    for node in graph.nodes.iter().rev() {
        let through = match node.op {
            Op::View(_) => reads.get(&node.output().id).copied().filter(|reads| reads.are_matmuls()),
            _ => None,
        };
        for (input, multiplied) in node.inputs.iter().zip(multiplied(node)) {
            let Operand::Tensor(tensor) = input else { continue };
            let reads = reads.entry(tensor.id).or_default();
            match through {
                Some(through) => reads.matmuls += through.matmuls,
                None if multiplied => reads.matmuls += 1,
                None => reads.others = true,
            }
        }
    }
    reads
}

/// For each input of a node: true if a matmul multiplies it.
fn multiplied(node: &Node) -> Vec<bool> {
    match &node.op {
        Op::Matmul => vec![true; 2],
        Op::Place(parts) => {
            let inputs = |part: &Part| repeat_n(part.matmul, if part.matmul { 2 } else { 1 });
            parts.iter().flat_map(inputs).collect()
        }
        _ => vec![false; node.inputs.len()],
    }
}
