//! Reads convolutions as nodes. One in half precision is an `f32` convolution of widened operands, with its bias added
//! in `f32`; its result is rounded once.

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
        bias.is_none_or(|bias| bias.dtype == output.dtype).then_some(())?;
        let [first, second] = inputs.map(|input| self.wide(input));
        let (op, inputs) = (Op::Convolve(Box::new(convolution)), vec![tensor(&first?), tensor(&second?)]);
        let given = if is_float(output) { output.clone() } else { self.between(output.shape.clone()) };
        match bias {
            None => self.nodes.push(Node::new(op, inputs, given.clone())),
            Some(bias) => {
                let shape = (0..output.shape.num_dims()).map(|dim| if dim == 1 { output.shape[1] } else { 1 });
                let (plain, spread) = (self.between(output.shape.clone()), self.between(shape.collect()));
                self.nodes.push(Node::new(op, inputs, plain.clone()));
                let bias = self.wide(bias)?;
                self.view(View::Reshape, &bias, &spread)?;
                self.map(Map::Add, [&plain, &spread], &given)?;
            }
        }
        if is_float(output) { Some(()) } else { self.cast(&given, output) }
    }

    /// The numbers of a tensor in `f32`.
    fn wide(&mut self, input: &TensorIr) -> Option<TensorIr> {
        if is_float(input) {
            return Some(input.clone());
        }
        let wide = self.between(input.shape.clone());
        self.cast(input, &wide)?;
        Some(wide)
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
