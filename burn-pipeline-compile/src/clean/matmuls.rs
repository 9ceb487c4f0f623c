//! Merges matmuls over as many rows as possible.
//!
//! 1. A batch of matrices times one matrix becomes one matmul over the rows of all of them. Each element is computed
//!    as before; the second matrix is packed once.
//! 2. Matmuls of transposed matrices that are summed over their batch become one matmul over the rows of all of them,
//!    if nothing else reads them: a weight's gradient. So its terms are never written; they are added in another
//!    order.

use crate::graph::{Graph, Node, Op, Operand, Reduction, View};
use burn::backend::ir::{TensorId, TensorIr};
use burn::tensor::Shape;
use std::collections::HashMap;

pub(super) fn matmuls(graph: Graph) -> Graph {
    let (makers, uses) = (graph.makers(), graph.uses());
    let mut next = Fresh(graph.fresh);
    let mut nodes = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let found = Found { graph: &graph, makers: &makers, uses: &uses };
        let rewritten = match &node.op {
            Op::Matmul => found.one_matrix(node, &mut next),
            Op::Reduce(Reduction::Sum, dims) => found.summed(node, dims, &mut next),
            _ => None,
        };
        nodes.extend(rewritten.unwrap_or_else(|| vec![node.clone()]));
    }
    Graph { nodes, fresh: next.0, ..graph }
}

/// Generates ids for tensors that the pass makes.
struct Fresh(u64);

impl Fresh {
    fn tensor(&mut self, shape: Vec<usize>, like: &TensorIr) -> TensorIr {
        self.0 += 1;
        TensorIr::uninit(TensorId::new(self.0 - 1), Shape::from(shape), like.dtype)
    }

    /// A tensor reshaped, and the node for it.
    fn reshaped(&mut self, tensor: &TensorIr, shape: Vec<usize>) -> (TensorIr, Node) {
        let out = self.tensor(shape, tensor);
        (out.clone(), Node::new(Op::View(View::Reshape), vec![Operand::Tensor(tensor.clone())], out))
    }
}

struct Found<'a> {
    graph: &'a Graph,
    makers: &'a HashMap<TensorId, usize>,
    uses: &'a HashMap<TensorId, usize>,
}

impl Found<'_> {
    fn maker(&self, tensor: &TensorIr) -> Option<&Node> {
        self.makers.get(&tensor.id).map(|&place| &self.graph.nodes[place])
    }

    /// Returns true if the elements of a tensor are known to be contiguous. Computed tensors are; a view with swapped
    /// dimensions is not.
    fn is_in_order(&self, tensor: &TensorIr) -> bool {
        match self.maker(tensor).map(|node| (&node.op, node)) {
            Some((Op::View(View::Reshape), node)) => {
                node.inputs[0].tensor().is_some_and(|input| self.is_in_order(input))
            }
            Some((Op::View(_) | Op::Interpret(_), _)) => false,
            _ => true,
        }
    }

    fn one_matrix(&self, node: &Node, next: &mut Fresh) -> Option<Vec<Node>> {
        let (lhs, rhs) = (node.inputs[0].tensor()?, node.inputs[1].tensor()?);
        let (rank, out) = (lhs.shape.num_dims(), node.output());
        let (batch, alone) = (&lhs.shape[..rank - 2], rhs.shape[..rank - 2].iter().all(|&size| size == 1));
        let count: usize = batch.iter().product();
        (count > 1 && alone && self.is_in_order(lhs)).then_some(())?;
        let [rows, depth, columns] = [lhs.shape[rank - 2], lhs.shape[rank - 1], rhs.shape[rank - 1]];
        let (left, first) = next.reshaped(lhs, vec![count * rows, depth]);
        let (right, second) = next.reshaped(rhs, vec![depth, columns]);
        let matmul = next.tensor(vec![count * rows, columns], out);
        let inputs = vec![Operand::Tensor(left), Operand::Tensor(right)];
        let third = Node::new(Op::Matmul, inputs, matmul.clone());
        let last = Node::new(Op::View(View::Reshape), vec![Operand::Tensor(matmul)], out.clone());
        Some(vec![first, second, third, last])
    }

    fn summed(&self, node: &Node, dims: &[usize], next: &mut Fresh) -> Option<Vec<Node>> {
        let (input, out) = (node.inputs[0].tensor()?, node.output());
        let rank = input.shape.num_dims();
        let batch = 0..rank.checked_sub(2)?;
        // All dimensions of the batch are summed, and no others.
        let all = batch.clone().all(|dim| dims.contains(&dim) || input.shape[dim] == 1);
        (all && dims.iter().all(|dim| batch.contains(dim))).then_some(())?;
        let matmul = self.maker(input).filter(|_| self.uses.get(&input.id) == Some(&1))?;
        let (Op::Matmul, [lhs, rhs]) = (&matmul.op, &matmul.inputs[..]) else { return None };
        let (lhs, rhs) = (lhs.tensor()?, rhs.tensor()?);
        let transposed = self.maker(lhs)?;
        let (Op::View(View::Permute(order)), Some(x)) = (&transposed.op, transposed.inputs[0].tensor()) else {
            return None;
        };
        let swapped = batch.clone().chain([rank - 1, rank - 2]).eq(order.iter().copied());
        let alike = x.shape[..rank - 1] == rhs.shape[..rank - 1];
        (swapped && alike && self.is_in_order(x) && self.is_in_order(rhs)).then_some(())?;
        let rows: usize = x.shape[..rank - 1].iter().product();
        let (depth, columns) = (x.shape[rank - 1], rhs.shape[rank - 1]);
        let (left, first) = next.reshaped(x, vec![rows, depth]);
        let left_transposed = next.tensor(vec![depth, rows], x);
        let second =
            Node::new(Op::View(View::Permute(vec![1, 0])), vec![Operand::Tensor(left)], left_transposed.clone());
        let (right, third) = next.reshaped(rhs, vec![rows, columns]);
        let matmul = next.tensor(vec![depth, columns], out);
        let inputs = vec![Operand::Tensor(left_transposed), Operand::Tensor(right)];
        let fourth = Node::new(Op::Matmul, inputs, matmul.clone());
        let last = Node::new(Op::View(View::Reshape), vec![Operand::Tensor(matmul)], out.clone());
        Some(vec![first, second, third, fourth, last])
    }
}
