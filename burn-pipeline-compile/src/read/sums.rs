//! Reads sums and other reductions as nodes.

use super::{Reader, fits, tensor};
use crate::graph::{Map, Node, Op, Operand, Reduction, View, is_number};
use burn::backend::ir::TensorIr;
use burn::tensor::Shape;

impl Reader {
    /// Reads a reduction that keeps its dimensions: along the last one first, then along the others. What is between
    /// both is `f32`, and so is the sum of a mean: results in half precision are rounded once.
    pub(super) fn reduce(
        &mut self,
        reduction: Reduction,
        input: &TensorIr,
        dims: &[usize],
        out: &TensorIr,
        mean: bool,
    ) -> Option<()> {
        let known = is_number(out) && input.dtype == out.dtype;
        (known && !input.shape.is_empty() && fits::reduces(input, dims, out)).then_some(())?;
        if dims.is_empty() {
            return self.map(Map::Copy, [input], out);
        }
        let last = input.shape.num_dims() - 1;
        let count: usize = dims.iter().map(|&dim| input.shape[dim]).product();
        let (rows, others): (Vec<usize>, Vec<usize>) = dims.iter().partition(|&&dim| dim == last);
        let parts: Vec<Vec<usize>> = [rows, others].into_iter().filter(|dims| !dims.is_empty()).collect();
        let mut from = input.clone();
        for (place, dims) in parts.iter().enumerate() {
            let mut shape = from.shape.to_vec();
            dims.iter().for_each(|&dim| shape[dim] = 1);
            let ends = place + 1 == parts.len() && !mean;
            let next = if ends { out.clone() } else { self.between(Shape::from(shape)) };
            self.to.nodes.push(Node::of(Op::Reduce(reduction, dims.clone()), [&from], &next));
            from = next;
        }
        if mean {
            let inputs = vec![tensor(&from), Operand::Scalar(count as f32)];
            self.to.nodes.push(Node::new(Op::Map(Map::Div), inputs, out.clone()));
        }
        Some(())
    }

    /// Reads a sum or mean over all elements.
    pub(super) fn whole(&mut self, input: &TensorIr, out: &TensorIr, mean: bool) -> Option<()> {
        (input.dtype == out.dtype && !input.shape.is_empty()).then_some(())?;
        let dims: Vec<usize> = (0..input.shape.num_dims()).collect();
        let one = self.to.tensor(vec![1; dims.len()], out.dtype);
        self.reduce(Reduction::Sum, input, &dims, &one, mean)?;
        self.view(View::Reshape, &one, out)
    }
}
