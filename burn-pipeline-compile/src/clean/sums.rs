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

use crate::graph::{Graph, Map, Node, Op, Operand, View, is_float};
use burn::backend::ir::{TensorId, TensorIr};
use burn::tensor::Shape;
use std::collections::{HashMap, HashSet};

pub(super) fn sums(graph: Graph) -> Graph {
    let mut next = graph.fresh;
    let (makers, uses) = (graph.makers(), graph.uses());
    let alone = |read: &&TensorIr| uses.get(&read.id) == Some(&1);
    let inner = graph.nodes.iter().filter(|node| is_sum(node)).flat_map(|node| node.reads().filter(alone));
    let inner = inner.map(|read| read.id).collect();
    let found = Found { graph: &graph, makers, uses, inner };
    let mut nodes = Vec::with_capacity(graph.nodes.len());
    for (place, node) in graph.nodes.iter().enumerate() {
        match found.terms(place).map(|(matmuls, rest)| joined(&matmuls, rest, node.output(), &mut next)) {
            Some(joined) => nodes.extend(joined),
            None => nodes.push(node.clone()),
        }
    }
    Graph { nodes, fresh: next, ..graph }
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

struct Found<'a> {
    graph: &'a Graph,
    makers: HashMap<TensorId, usize>,
    uses: HashMap<TensorId, usize>,
    /// Tensors that only a sum reads.
    inner: HashSet<TensorId>,
}

impl Found<'_> {
    /// The node that makes a tensor, if only one other node reads the tensor.
    fn own(&self, tensor: &TensorIr) -> Option<&Node> {
        let place = *self.makers.get(&tensor.id)?;
        (self.uses.get(&tensor.id) == Some(&1)).then_some(&self.graph.nodes[place])
    }

    /// The matmuls (at least two) and the other terms of the sum at this index; `None` if it is part of a larger sum.
    fn terms(&self, place: usize) -> Option<(Vec<Matmul>, Vec<TensorIr>)> {
        let node = &self.graph.nodes[place];
        (is_sum(node) && !self.inner.contains(&node.output().id)).then_some(())?;
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
        let maker = self.makers.get(&left.id).map(|&place| &self.graph.nodes[place]);
        Some(match maker.map(|maker| (&maker.op, &maker.inputs[..])) {
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

/// The nodes of one matmul, with the other terms added to it.
fn joined(matmuls: &[Matmul], rest: Vec<TensorIr>, output: &TensorIr, next: &mut u64) -> Vec<Node> {
    let mut tensor = |shape: [usize; 2]| {
        *next += 1;
        TensorIr::uninit(TensorId::new(*next - 1), Shape::from(shape.to_vec()), output.dtype)
    };
    let [rows, columns] = [output.shape[0], output.shape[1]];
    let transposed = matmuls.iter().all(|matmul| matmul.transposed);
    let depth = matmuls.iter().map(|matmul| matmul.right.shape[0]).sum();
    let mut nodes = Vec::new();
    let left = match transposed {
        true => {
            let (below, left) = (tensor([depth, rows]), tensor([rows, depth]));
            nodes.push(Node::beside(matmuls.iter().map(|matmul| &matmul.left), 0, &below));
            nodes.push(turn(&below, &left));
            left
        }
        false => {
            let lefts: Vec<TensorIr> =
                matmuls.iter().map(|matmul| matmul.left_as_read(&mut nodes, &mut tensor)).collect();
            let left = tensor([rows, depth]);
            nodes.push(Node::beside(lefts.iter(), 1, &left));
            left
        }
    };
    let right = tensor([depth, columns]);
    nodes.push(Node::beside(matmuls.iter().map(|matmul| &matmul.right), 0, &right));
    let mut sum = if rest.is_empty() { output.clone() } else { tensor([rows, columns]) };
    nodes.push(Node::new(Op::Matmul, vec![Operand::Tensor(left), Operand::Tensor(right)], sum.clone()));
    let count = rest.len();
    for (place, term) in rest.into_iter().enumerate() {
        let to = if place + 1 == count { output.clone() } else { tensor([rows, columns]) };
        let inputs = vec![Operand::Tensor(sum), Operand::Tensor(term)];
        nodes.push(Node::new(Op::Map(Map::Add), inputs, to.clone()));
        sum = to;
    }
    nodes
}

impl Matmul {
    /// The left operand in the form that the matmul reads.
    fn left_as_read(&self, nodes: &mut Vec<Node>, tensor: &mut impl FnMut([usize; 2]) -> TensorIr) -> TensorIr {
        if !self.transposed {
            return self.left.clone();
        }
        let transposed = tensor([self.left.shape[1], self.left.shape[0]]);
        nodes.push(turn(&self.left, &transposed));
        transposed
    }
}

fn turn(input: &TensorIr, output: &TensorIr) -> Node {
    Node::new(Op::View(View::Permute(vec![1, 0])), vec![Operand::Tensor(input.clone())], output.clone())
}
