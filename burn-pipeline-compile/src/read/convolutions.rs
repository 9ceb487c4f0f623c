//! Reads convolutions as nodes.

use super::{Reader, tensor};
use crate::convolution::{self, Read};
use crate::graph::{Map, Node, Op, Reduction, View, is_float};
use burn::backend::ir::{ModuleOperationIr, TensorIr};

impl Reader {
    /// Reads a convolution without groups; a bias is added to the output.
    pub(super) fn module(&mut self, op: &ModuleOperationIr) -> Option<()> {
        if let Some((gradient, bias)) = convolution::bias_gradient(op) {
            return self.over_channels(gradient, bias);
        }
        let Read { convolution, inputs, bias, output } = convolution::read(op)?;
        bias.is_none_or(is_float).then_some(())?;
        let op = Op::Convolve(Box::new(convolution));
        let inputs = inputs.map(tensor).to_vec();
        let Some(bias) = bias else {
            self.nodes.push(Node::new(op, inputs, output.clone()));
            return Some(());
        };
        let shape = (0..output.shape.num_dims()).map(|dim| if dim == 1 { output.shape[1] } else { 1 }).collect();
        let (plain, wide) = (self.temporary(output.shape.clone(), output), self.temporary(shape, bias));
        self.nodes.push(Node::new(op, inputs, plain.clone()));
        self.view(View::Reshape, bias, &wide)?;
        self.map(Map::Add, [&plain, &wide], output)
    }

    /// Sums over all dimensions but the channels.
    fn over_channels(&mut self, input: &TensorIr, out: &TensorIr) -> Option<()> {
        let dims: Vec<usize> = (0..input.shape.num_dims()).filter(|&dim| dim != 1).collect();
        let shape = (0..input.shape.num_dims()).map(|dim| if dim == 1 { input.shape[1] } else { 1 }).collect();
        let sum = self.temporary(shape, out);
        self.reduce(Reduction::Sum, input, &dims, &sum, false)?;
        self.view(View::Reshape, &sum, out)
    }
}
