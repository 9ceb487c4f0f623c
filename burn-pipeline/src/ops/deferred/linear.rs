//! Burn's linear layer, with deferred weight and bias gradients.
//!
//! Burn 0.22 runs a linear layer as a matmul and an addition: on the flattened rows of the input if the rows of one
//! batch alone make a poor tile, else batch by batch with the weight broadcast. Its backward follows the forward, and
//! so does this one, call by call: another order of summation would round differently.

use super::{DeferredForward, DeferredOp, deferred, defers, operands};
use burn::backend::ops::{FloatTensorOps, ModuleOps};
use burn::backend::{Dispatch, DispatchTensor, TensorMetadata};
use burn::nn::Linear;
use burn::tensor::{Shape, Tensor};

/// `y = x W + b`, of shapes `[.., i]`, `[i, o]` and `[o]`; operands `x`, `W` and, if there is one, `b`.
#[derive(Debug)]
struct LinearOp;

impl DeferredOp for LinearOp {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn forward(&self, operands: &[DispatchTensor]) -> DispatchTensor {
        Dispatch::linear(operands[0].clone(), operands[1].clone(), operands.get(2).cloned())
    }

    fn gradient(&self, operand: usize, operands: &[DispatchTensor], of_output: &DispatchTensor) -> DispatchTensor {
        let (x, weight) = (&operands[0], &operands[1]);
        let [d_in, d_out] = weight.shape().dims();
        let rank = x.shape().num_dims();
        let (rows, lead) = match flattened_rows(&x.shape(), d_out) {
            Some(rows) => (Some(rows), 1),
            None => (None, rank - 1),
        };
        // The matmul's inputs have `lead` dimensions before the last one.
        let matmul_input = |tensor: &DispatchTensor, last: usize| match rows {
            Some(rows) => Dispatch::float_reshape(tensor.clone(), Shape::new([rows, last])),
            None => tensor.clone(),
        };
        let of_output = matmul_input(of_output, d_out);
        let ones = |count: usize| std::iter::repeat_n(1, count);
        match operand {
            0 => {
                let weight = reshaped(weight.clone(), ones(lead - 1).chain([d_in, d_out]));
                let gradient = Dispatch::float_matmul(of_output, Dispatch::float_transpose(weight));
                Dispatch::float_reshape(gradient, x.shape())
            }
            1 => {
                let gradient = Dispatch::float_matmul(Dispatch::float_transpose(matmul_input(x, d_in)), of_output);
                reshaped(summed(gradient, lead - 1), [d_in, d_out])
            }
            _ => reshaped(summed(of_output, lead), [d_out]),
        }
    }
}

/// The number of rows of all batches together, if Burn flattens the input of a linear layer.
fn flattened_rows(input: &Shape, d_out: usize) -> Option<usize> {
    const TILE: usize = 32;
    let rank = input.num_dims();
    let (batches, each) = (input[..rank - 2].iter().product::<usize>(), input[rank - 2]);
    let rows = batches * each;
    let squarer = rows.min(d_out) * each.max(d_out) > each.min(d_out) * rows.max(d_out);
    (batches != 1 && !each.is_multiple_of(TILE) && squarer).then_some(rows)
}

fn reshaped(tensor: DispatchTensor, dims: impl IntoIterator<Item = usize>) -> DispatchTensor {
    Dispatch::float_reshape(tensor, Shape::from(dims.into_iter().collect::<Vec<_>>()))
}

/// The sum over the first `lead` dimensions, which keep size 1: the backward of a broadcast.
fn summed(tensor: DispatchTensor, lead: usize) -> DispatchTensor {
    let shape = tensor.shape();
    let broadcast: Vec<usize> = (0..lead).filter(|&dim| shape[dim] != 1).collect();
    match broadcast.as_slice() {
        [] => tensor,
        [dim] => Dispatch::float_sum_dim(tensor, *dim),
        dims => Dispatch::float_sum_dims(tensor, dims),
    }
}

impl<const D: usize> DeferredForward<Tensor<D>> for Linear {
    type Output = Tensor<D>;

    /// For ranks 2 and above; a vector is left to Burn's layer.
    fn forward_deferred(&self, input: Tensor<D>) -> Tensor<D> {
        if D == 1 || !defers(&self.weight) {
            return self.forward(input);
        }
        Tensor::from_dispatch(deferred(LinearOp, operands(input, &self.weight, self.bias.as_ref())))
    }
}
