//! `W` of several microbatches at once: one matmul over all their rows instead of a matmul each and a sum.
//!
//! Guarantees: the same gradients up to the order of additions; nothing more is held between `I` and `W`.
//!
//! 1. The gradient of a linear layer's weight is `xᵀ·g` over the rows of a microbatch: a matmul with a transposed
//!    left side, possibly summed over a leading dimension and reshaped. Such chains at the end of `W` that nothing
//!    else reads are found and cut off. The rest of `W` returns `x` and `g`, and all other gradients.
//! 2. For `k` microbatches, the rows of all `x` and of all `g` are concatenated and multiplied once. A leading
//!    dimension that was summed over becomes rows as well.
//! 3. This copies `x` and `g`, and saves writing and adding `k` gradients. It is done for a matmul only if it moves
//!    fewer bytes ([`Product::is_worth`]): many short microbatches of a wide layer. Otherwise each microbatch's
//!    matmul is computed separately and added.
//!
//! Sums over rows are then added in another order than microbatch by microbatch, so results differ by rounding.
//! In half precision, rows are widened before the one matmul, and gradients of separate matmuls before they are added,
//! so a sum over microbatches is f32 and was never rounded.

use super::part::Program;
use super::recording::Recording;
use super::slices::Slices;
use crate::payload::AnyTensor;
use burn::backend::ir::{BaseOperationIr, FloatOperationIr, NumericOperationIr, OperationIr, TensorId, TensorIr};
use burn::backend::ops::FloatTensorOps;
use burn::backend::{Dispatch, DispatchTensor};
use burn::tensor::{DType, Shape};
use std::collections::{HashMap, HashSet};

/// A weight gradient that is a matmul over rows.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Product {
    /// Its index among the stage's weight gradients.
    pub(crate) gradient: usize,
    pub(super) x: TensorIr,
    pub(super) g: TensorIr,
    /// True if the leading dimension is summed over.
    summed: bool,
    shape: Shape,
}

impl Product {
    /// Returns true if one matmul over `microbatches` microbatches moves fewer bytes than one each.
    ///
    /// Counted in elements: concatenating rows reads and writes every `x` and `g`. Separate matmuls write one
    /// gradient each (one per leading index, which is read again to be summed), and adding one to another reads two
    /// and writes one. In half precision, both sides take about as many bytes, since both widen.
    pub(crate) fn is_worth(&self, microbatches: usize) -> bool {
        let (x, g) = (self.x.shape.num_elements(), self.g.shape.num_elements());
        let gradient = self.shape.num_elements();
        let leading = if self.summed { self.x.shape[0] } else { 1 };
        let copied = if microbatches > 1 { 2 * microbatches * (x + g) } else { 0 };
        let each = if leading > 1 { 2 * leading + 1 } else { 1 };
        let separate = gradient * (microbatches * each + 3 * microbatches.saturating_sub(1));
        gradient + copied < separate
    }

    /// The gradient over all microbatches, from the `x` and `g` of each; f32 in half precision.
    pub(crate) fn over(&self, operands: Vec<(DispatchTensor, DispatchTensor)>) -> Option<DispatchTensor> {
        let count = operands.len();
        let (xs, gs): (Vec<_>, Vec<_>) =
            operands.into_iter().map(|(x, g)| (self.rows(x, &self.x), self.rows(g, &self.g))).unzip();
        let dim = self.rank() - 2;
        let multiply = |x: DispatchTensor, g| Dispatch::float_matmul(Dispatch::float_swap_dims(x, dim, dim + 1), g);
        let product = if count > 1 && self.is_worth(count) {
            let joined = |rows| widened(Dispatch::float_cat(rows, dim));
            multiply(joined(xs), joined(gs))
        } else {
            xs.into_iter().zip(gs).map(|(x, g)| widened(multiply(x, g))).reduce(Dispatch::float_add)?
        };
        Some(Dispatch::float_reshape(product, self.shape.clone()))
    }

    /// The type of a microbatch's gradient.
    pub(crate) fn dtype(&self) -> DType {
        self.g.dtype
    }

    /// The number of dimensions of the matmul's operands.
    fn rank(&self) -> usize {
        if self.summed { 2 } else { self.x.shape.num_dims() }
    }

    /// Turns a leading dimension that is summed over into rows.
    fn rows(&self, tensor: DispatchTensor, spec: &TensorIr) -> DispatchTensor {
        match self.summed {
            true => {
                let [leading, rows, columns] = [0, 1, 2].map(|dim| spec.shape[dim]);
                Dispatch::float_reshape(tensor, Shape::new([leading * rows, columns]))
            }
            false => tensor,
        }
    }
}

fn widened(tensor: DispatchTensor) -> DispatchTensor {
    AnyTensor::from_dispatch(tensor).widened().into_dispatch()
}

/// `W`, cut so that matmuls over several microbatches can be merged.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct MergedWeight {
    /// What each microbatch runs separately; it returns operands of matmuls, then the other gradients.
    pub(crate) program: Program,
    /// The gradients that are matmuls over rows.
    pub(crate) products: Vec<Product>,
    /// Indices of the gradients that are not, in the order in which the program returns them.
    pub(crate) others: Vec<usize>,
}

/// The matmuls of a recording, and the operations of `W` that they replace.
pub(super) fn products(recording: &Recording, parts: &Slices) -> (Vec<Product>, HashSet<usize>) {
    let graph = Ends::new(recording, parts);
    let (mut products, mut replaced) = (Vec::new(), HashSet::new());
    for (gradient, (_, tensor)) in recording.edges.weight_gradients.iter().enumerate() {
        if let Some((product, operations)) = graph.product(gradient, tensor) {
            products.push(product);
            replaced.extend(operations);
        }
    }
    (products, replaced)
}

/// The producers and readers of the tensors of `W`.
struct Ends<'a> {
    recording: &'a Recording,
    made: HashMap<TensorId, usize>,
    /// The number of reads, including returns as a gradient.
    uses: HashMap<TensorId, usize>,
}

impl<'a> Ends<'a> {
    fn new(recording: &'a Recording, parts: &Slices) -> Self {
        let (mut made, mut uses) = (HashMap::new(), HashMap::new());
        for &place in &parts.weight {
            let op = &recording.operations[place];
            made.extend(op.outputs().map(|output| (output.id, place)));
            op.inputs().for_each(|input| *uses.entry(input.id).or_default() += 1);
        }
        for (_, gradient) in &recording.edges.weight_gradients {
            *uses.entry(gradient.id).or_default() += 1;
        }
        Self { recording, made, uses }
    }

    /// The operation of `W` that computes a tensor, if only the chain reads that tensor.
    fn maker(&self, tensor: &TensorIr) -> Option<(usize, &'a OperationIr)> {
        let place = *self.made.get(&tensor.id)?;
        (self.uses.get(&tensor.id) == Some(&1)).then(|| (place, &self.recording.operations[place]))
    }

    /// Walks back from a gradient to the matmul that computes it.
    fn product(&self, gradient: usize, tensor: &TensorIr) -> Option<(Product, Vec<usize>)> {
        let (mut chain, mut summed, mut at) = (Vec::new(), false, tensor);
        loop {
            let (place, op) = self.maker(at)?;
            chain.push(place);
            match op {
                OperationIr::BaseFloat(BaseOperationIr::Reshape(reshape)) if !summed => at = &reshape.input,
                OperationIr::NumericFloat(_, NumericOperationIr::SumDim(sum))
                    if !summed && sum.axis == 0 && sum.input.shape.num_dims() == 3 =>
                {
                    (summed, at) = (true, &sum.input);
                }
                OperationIr::Float(_, FloatOperationIr::Matmul(product)) => {
                    let (place, OperationIr::BaseFloat(BaseOperationIr::SwapDims(swap))) = self.maker(&product.lhs)?
                    else {
                        return None;
                    };
                    chain.push(place);
                    let last = swap.input.shape.num_dims() - 1;
                    let dims = [swap.dim1.min(swap.dim2), swap.dim1.max(swap.dim2)];
                    let alike = swap.input.shape[..last - 1] == product.rhs.shape[..last - 1];
                    if dims != [last - 1, last] || !alike {
                        return None;
                    }
                    let (x, g, shape) = (swap.input.clone(), product.rhs.clone(), tensor.shape.clone());
                    return Some((Product { gradient, x, g, summed, shape }, chain));
                }
                _ => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_merged_only_where_that_moves_fewer_bytes() {
        let operand = |rows: usize| TensorIr::uninit(TensorId::new(0), Shape::new([rows, 16]), DType::F32);
        let worth = |rows: usize, microbatches| {
            let (x, g, shape) = (operand(rows), operand(rows), Shape::new([16, 16]));
            Product { gradient: 0, x, g, summed: false, shape }.is_worth(microbatches)
        };
        // 16 x 16 gradients: two short microbatches move 256 + 2 * 2 * 96 against 5 * 256 elements.
        assert!(worth(3, 2));
        // Long ones: 256 + 2 * 2 * 2 * 1,024 against 5 * 256.
        assert!(!worth(64, 2));
        // One microbatch: there is nothing to concatenate.
        assert!(!worth(3, 1));
    }
}
