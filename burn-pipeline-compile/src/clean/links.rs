//! The nodes that make tensors, and how often tensors are read.

use crate::graph::{Graph, Node};
use burn::backend::ir::{TensorId, TensorIr};
use std::collections::HashMap;

/// Finds the nodes of a graph by the tensors that they make.
#[derive(Clone, Copy)]
pub(super) struct Links<'a> {
    pub(super) graph: &'a Graph,
    pub(super) makers: &'a HashMap<TensorId, usize>,
    pub(super) uses: &'a HashMap<TensorId, usize>,
}

impl<'a> Links<'a> {
    /// The node that makes a tensor.
    pub(super) fn maker(&self, tensor: &TensorIr) -> Option<&'a Node> {
        self.makers.get(&tensor.id).map(|&place| &self.graph.nodes[place])
    }

    /// The node that makes a tensor, if only one other node reads the tensor.
    pub(super) fn own(&self, tensor: &TensorIr) -> Option<&'a Node> {
        self.maker(tensor).filter(|_| self.uses.get(&tensor.id) == Some(&1))
    }
}
