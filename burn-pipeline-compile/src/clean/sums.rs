//! Merges a sum of matmuls into one matmul.
//!
//! 1. Additions of tensors of one shape, where only the next addition reads each sum, are one sum of several terms.
//!    Its terms that are matmuls of two matrices, which nothing else reads, are joined: left operands are
//!    concatenated along columns, right operands along rows. The other terms are added to the resulting matmul.
//! 2. In a weight's gradient, left operands are transposed: their inputs are joined and then transposed.
//! 3. Matmuls are joined in program order, so that sums over the same steps (the gates of a recurrent layer) share
//!    the joined operands.
//! 4. Only matmuls whose operands are smaller than their result are joined, which saves memory and memory traffic:
//!    the steps of a recurrent layer, but not those of a batch.
//!
//! Each element is a sum of the same products in another order. Operations between the matmuls, including exchanges
//! with other ranks, do not matter: a weight's gradient has the same bits in `W` and in `B`.

use super::links::Links;
use crate::graph::{Graph, Map, Node, Op, Operand, View, Writer, is_float};
use burn::backend::ir::{TensorId, TensorIr};
use burn::tensor::DType;
use std::collections::HashSet;

pub(super) fn sums(graph: Graph) -> Graph {
    let links = Links { graph: &graph, makers: &graph.makers(), uses: &graph.uses() };
    let alone = |read: &&TensorIr| links.uses.get(&read.id) == Some(&1);
    let inner = graph.nodes.iter().filter(|node| is_sum(node)).flat_map(|node| node.reads().filter(alone));
    let inner: HashSet<TensorId> = inner.map(|read| read.id).collect();
    let mut to = Writer { nodes: Vec::with_capacity(graph.nodes.len()), fresh: graph.fresh };
    let is_whole = |node: &&Node| is_sum(node) && !inner.contains(&node.output().id);
    for node in &graph.nodes {
        match Some(node).filter(is_whole).and_then(|node| links.terms(node)) {
            Some((matmuls, rest)) => join(&matmuls, rest, node.output(), &mut to),
            None => to.nodes.push(node.clone()),
        }
    }
    let Writer { nodes, fresh } = to;
    Graph { nodes, fresh, ..graph }
}

/// A matmul of two matrices, as a term of a sum.
struct Matmul {
    /// The result of the matmul.
    output: TensorId,
    /// The left operand, or the tensor that it is the transpose of.
    left: TensorIr,
    transposed: bool,
    right: TensorIr,
}

impl Links<'_> {
    /// The matmuls (at least two) and the other terms of a sum.
    fn terms(&self, node: &Node) -> Option<(Vec<Matmul>, Vec<TensorIr>)> {
        let (mut matmuls, mut rest) = (Vec::new(), Vec::new());
        let mut left: Vec<&TensorIr> = node.reads().collect();
        while let Some(tensor) = left.pop() {
            match self.own(tensor) {
                Some(node) if is_sum(node) => left.extend(node.reads()),
                node => match node.and_then(|node| self.matmul(node)) {
                    Some(matmul) => matmuls.push(matmul),
                    None => rest.push(tensor.clone()),
                },
            }
        }
        matmuls.sort_by_key(|matmul| matmul.output);
        (matmuls.len() > 1).then_some((matmuls, rest))
    }

    fn matmul(&self, node: &Node) -> Option<Matmul> {
        let (Op::Matmul, [left, right]) = (&node.op, &node.inputs[..]) else { return None };
        let (left, right) = (left.tensor()?, right.tensor()?.clone());
        let [rows, columns] = node.output().shape[..] else { return None };
        let depth = left.shape[1];
        let smaller = depth * (rows + columns) <= rows * columns;
        (smaller && is_float(left) && is_float(&right)).then_some(())?;
        let output = node.output().id;
        Some(match self.maker(left).map(|maker| (&maker.op, &maker.inputs[..])) {
            Some((Op::View(View::Permute(_)), [Operand::Tensor(of)])) if of.shape[..] == [depth, rows] => {
                Matmul { output, left: of.clone(), transposed: true, right }
            }
            _ => Matmul { output, left: left.clone(), transposed: false, right },
        })
    }
}

/// Returns true if the node adds two matrices of one shape.
fn is_sum(node: &Node) -> bool {
    let shape = |tensor: &TensorIr| tensor.shape == node.output().shape && is_float(tensor);
    let alike = |input: &Operand| input.tensor().is_some_and(shape);
    matches!(node.op, Op::Map(Map::Add)) && node.output().shape.num_dims() == 2 && node.inputs.iter().all(alike)
}

/// Writes one matmul, with the other terms added to it.
fn join(matmuls: &[Matmul], rest: Vec<TensorIr>, output: &TensorIr, to: &mut Writer) {
    let (rows, columns) = (output.shape[0], output.shape[1]);
    let depth = matmuls.iter().map(|matmul| matmul.right.shape[0]).sum();
    let left = match matmuls.iter().all(|matmul| matmul.transposed) {
        true => {
            let below = beside(matmuls.iter().map(|matmul| &matmul.left), 0, [depth, rows], to);
            to.transpose(&below)
        }
        false => {
            let as_read = |Matmul { left, transposed, .. }: &Matmul| match transposed {
                true => to.transpose(left),
                false => left.clone(),
            };
            let lefts: Vec<TensorIr> = matmuls.iter().map(as_read).collect();
            beside(lefts.iter(), 1, [rows, depth], to)
        }
    };
    let right = beside(matmuls.iter().map(|matmul| &matmul.right), 0, [depth, columns], to);
    let (mut op, mut inputs) = (Op::Matmul, [left, right]);
    for term in rest {
        let sum = to.make(op, &inputs, [rows, columns], output.dtype);
        (op, inputs) = (Op::Map(Map::Add), [sum, term]);
    }
    to.nodes.push(Node::of(op, &inputs, output));
}

/// Concatenates `f32` tensors along a dimension.
fn beside<'a>(tensors: impl Iterator<Item = &'a TensorIr>, dim: usize, shape: [usize; 2], to: &mut Writer) -> TensorIr {
    let output = to.tensor(shape, DType::F32);
    to.nodes.push(Node::beside(tensors, dim, &output));
    output
}
