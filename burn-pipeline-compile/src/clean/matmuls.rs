//! Merges matmuls over as many rows as possible.
//!
//! 1. A batch of matrices times one matrix becomes one matmul over the rows of all of them. Each element is computed
//!    as before; the second matrix is packed once.
//! 2. Matmuls that are summed over their batch become one matmul over the rows of all of them, if nothing else reads
//!    them: a weight's gradient. So its terms are never written; they are added in another order.
//!
//! Guarantees: what is merged depends on sizes alone, not on how operands are stored. A tensor that one program makes
//! as a view is fed to another, which cannot see that. So `B` and `W` give a weight's gradient the same bits. Rows
//! that are not contiguous are copied.

use super::links::Links;
use crate::graph::{Graph, Node, Op, Reduction, View, Writer};

pub(super) fn matmuls(graph: Graph) -> Graph {
    let links = Links { graph: &graph, makers: &graph.makers(), uses: &graph.uses() };
    let mut to = Writer { nodes: Vec::with_capacity(graph.nodes.len()), fresh: graph.fresh };
    for node in &graph.nodes {
        let rewritten = match &node.op {
            Op::Matmul => links.one_matrix(node, &mut to),
            Op::Reduce(Reduction::Sum, dims) => links.summed(node, dims, &mut to),
            _ => None,
        };
        if rewritten.is_none() {
            to.nodes.push(node.clone());
        }
    }
    let Writer { nodes, fresh } = to;
    Graph { nodes, fresh, ..graph }
}

impl Links<'_> {
    fn one_matrix(&self, node: &Node, to: &mut Writer) -> Option<()> {
        let (lhs, rhs) = (node.inputs[0].tensor()?, node.inputs[1].tensor()?);
        let (rank, out) = (lhs.shape.num_dims(), node.output());
        let (batch, alone) = (&lhs.shape[..rank - 2], rhs.shape[..rank - 2].iter().all(|&size| size == 1));
        let count: usize = batch.iter().product();
        (count > 1 && alone).then_some(())?;
        let [rows, depth, columns] = [lhs.shape[rank - 2], lhs.shape[rank - 1], rhs.shape[rank - 1]];
        let (left, right) = (to.reshape(lhs, [count * rows, depth]), to.reshape(rhs, [depth, columns]));
        let matmul = to.make(Op::Matmul, [&left, &right], [count * rows, columns], out.dtype);
        to.nodes.push(Node::of(Op::View(View::Reshape), [&matmul], out));
        Some(())
    }

    fn summed(&self, node: &Node, dims: &[usize], to: &mut Writer) -> Option<()> {
        let (input, out) = (node.inputs[0].tensor()?, node.output());
        let rank = input.shape.num_dims();
        let batch = 0..rank.checked_sub(2)?;
        // All dimensions of the batch are summed, and no others.
        let all = batch.clone().all(|dim| dims.contains(&dim) || input.shape[dim] == 1);
        (all && dims.iter().all(|dim| batch.contains(dim))).then_some(())?;
        let matmul = self.own(input)?;
        let (Op::Matmul, [lhs, rhs]) = (&matmul.op, &matmul.inputs[..]) else { return None };
        let (lhs, rhs) = (lhs.tensor()?, rhs.tensor()?);
        (lhs.shape[..rank - 2] == rhs.shape[..rank - 2]).then_some(())?;
        let [depth, columns] = [lhs.shape[rank - 2], rhs.shape[rank - 1]];
        let rows = rhs.shape[..rank - 1].iter().product();
        let turned = to.transpose(lhs);
        let (left, right) = (to.reshape(&turned, [rows, depth]), to.reshape(rhs, [rows, columns]));
        let left = to.transpose(&left);
        let matmul = to.make(Op::Matmul, [&left, &right], [depth, columns], out.dtype);
        to.nodes.push(Node::of(Op::View(View::Reshape), [&matmul], out));
        Some(())
    }
}
