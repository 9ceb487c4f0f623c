//! A sum of products is one product.
//!
//! 1. Additions of tensors of one shape, each sum read by the next one alone, are a sum of several terms. Those that are products of two matrices
//!    which nothing else reads are joined: left operands side by side, right ones below each other. Other terms are added to the product.
//! 2. Left operands are turned in a weight's gradient: what they are turned of is joined, and then turned.
//! 3. Products are joined in the order in which the program makes them, so that sums over the same steps (the gates of a recurrent layer) share
//!    what is joined.
//! 4. Only products whose operands are smaller than what they give are joined, so that less memory is needed and moved: of a recurrent layer's
//!    steps, not of a batch's.
//!
//! Elements are sums of the same products in another order. What stands between the products, exchanges with other ranks included, decides
//! nothing: a weight's gradient has the same bits in `W` and in `B`.

use crate::graph::{Graph, Map, Node, Op, Operand, View, is_float};
use burn::backend::ir::{TensorId, TensorIr};
use burn::tensor::Shape;
use std::collections::{HashMap, HashSet};

pub(super) fn sums(graph: Graph) -> Graph {
    let tensors = graph.nodes.iter().flat_map(|node| node.reads().chain(&node.outputs));
    let ids = tensors.map(|tensor| tensor.id.value()).chain(graph.kept.iter().map(TensorId::value));
    let mut next = ids.max().map_or(0, |id| id + 1);
    let (makers, uses) = (graph.makers(), graph.uses());
    let alone = |read: &&TensorIr| uses.get(&read.id) == Some(&1);
    let inner = graph.nodes.iter().filter(|node| is_sum(node)).flat_map(|node| node.reads().filter(alone));
    let inner = inner.map(|read| read.id).collect();
    let found = Found { graph: &graph, makers, uses, inner };
    let mut nodes = Vec::with_capacity(graph.nodes.len());
    for (place, node) in graph.nodes.iter().enumerate() {
        match found.terms(place).map(|(products, rest)| joined(&products, rest, node.output(), &mut next)) {
            Some(joined) => nodes.extend(joined),
            None => nodes.push(node.clone()),
        }
    }
    Graph { nodes, ..graph }
}

/// A product of two matrices that is added to others.
struct Product {
    /// What it gives.
    output: TensorId,
    /// The left operand, or what it is turned of.
    left: TensorIr,
    turned: bool,
    right: TensorIr,
}

struct Found<'a> {
    graph: &'a Graph,
    makers: HashMap<TensorId, usize>,
    uses: HashMap<TensorId, usize>,
    /// What a sum alone reads.
    inner: HashSet<TensorId>,
}

impl Found<'_> {
    /// The node that makes what one other node alone reads.
    fn own(&self, tensor: &TensorIr) -> Option<&Node> {
        let place = *self.makers.get(&tensor.id)?;
        (self.uses.get(&tensor.id) == Some(&1)).then_some(&self.graph.nodes[place])
    }

    /// The products that the sum at this place adds up, two at least, and its other terms; `None` if it is part of a larger sum.
    fn terms(&self, place: usize) -> Option<(Vec<Product>, Vec<TensorIr>)> {
        let node = &self.graph.nodes[place];
        (is_sum(node) && !self.inner.contains(&node.output().id)).then_some(())?;
        let (mut products, mut rest) = (Vec::new(), Vec::new());
        let mut left: Vec<&TensorIr> = node.reads().collect();
        while let Some(tensor) = left.pop() {
            match self.own(tensor) {
                Some(node) if is_sum(node) => left.extend(node.reads()),
                node => match node.and_then(|node| self.product(node)) {
                    Some(product) => products.push(product),
                    None => rest.push(tensor.clone()),
                },
            }
        }
        products.sort_by_key(|product| product.output);
        (products.len() > 1).then_some((products, rest))
    }

    fn product(&self, node: &Node) -> Option<Product> {
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
                Product { output, left: of.clone(), turned: true, right }
            }
            _ => Product { output, left: left.clone(), turned: false, right },
        })
    }
}

/// Adds two matrices of one shape.
fn is_sum(node: &Node) -> bool {
    let shape = |tensor: &TensorIr| tensor.shape == node.output().shape && is_float(tensor);
    let alike = |input: &Operand| input.tensor().is_some_and(shape);
    matches!(node.op, Op::Map(Map::Add)) && node.output().shape.num_dims() == 2 && node.inputs.iter().all(alike)
}

/// One product, and the other terms added to it.
fn joined(products: &[Product], rest: Vec<TensorIr>, output: &TensorIr, next: &mut u64) -> Vec<Node> {
    let mut tensor = |shape: [usize; 2]| {
        *next += 1;
        TensorIr::uninit(TensorId::new(*next - 1), Shape::from(shape.to_vec()), output.dtype)
    };
    let [rows, columns] = [output.shape[0], output.shape[1]];
    let turned = products.iter().all(|product| product.turned);
    let depth = products.iter().map(|product| product.right.shape[0]).sum();
    let mut nodes = Vec::new();
    let left = match turned {
        true => {
            let (below, left) = (tensor([depth, rows]), tensor([rows, depth]));
            nodes.push(Node::beside(products.iter().map(|product| &product.left), 0, &below));
            nodes.push(turn(&below, &left));
            left
        }
        false => {
            let lefts: Vec<TensorIr> =
                products.iter().map(|product| product.left_as_read(&mut nodes, &mut tensor)).collect();
            let left = tensor([rows, depth]);
            nodes.push(Node::beside(lefts.iter(), 1, &left));
            left
        }
    };
    let right = tensor([depth, columns]);
    nodes.push(Node::beside(products.iter().map(|product| &product.right), 0, &right));
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

impl Product {
    /// The left operand as the product reads it.
    fn left_as_read(&self, nodes: &mut Vec<Node>, tensor: &mut impl FnMut([usize; 2]) -> TensorIr) -> TensorIr {
        if !self.turned {
            return self.left.clone();
        }
        let turned = tensor([self.left.shape[1], self.left.shape[0]]);
        nodes.push(turn(&self.left, &turned));
        turned
    }
}

fn turn(input: &TensorIr, output: &TensorIr) -> Node {
    Node::new(Op::View(View::Permute(vec![1, 0])), vec![Operand::Tensor(input.clone())], output.clone())
}
