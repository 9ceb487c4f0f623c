//! User-defined operations are deferred like Burn's layers, and refused by name if their gradients do not fit.

use super::operations::{Rows, assert_deferred, backward, leaf, row};
use burn::backend::DispatchTensor;
use burn::backend::autodiff::grads::Gradients;
use burn::tensor::Tensor;
use burn_pipeline::ops::{Deferral, DeferredOp, deferred};

/// `y = x w + b` with any number of biases, as a user-defined operation.
#[derive(Debug)]
pub(super) struct Affine;

fn matrix(tensor: &DispatchTensor) -> Tensor<2> {
    Tensor::from_dispatch(tensor.clone())
}

impl DeferredOp for Affine {
    fn name(&self) -> &'static str {
        "affine"
    }

    fn forward(&self, operands: &[DispatchTensor]) -> DispatchTensor {
        let y = matrix(&operands[0]).matmul(matrix(&operands[1]));
        operands[2..].iter().fold(y, |y, bias| y + matrix(bias)).into_dispatch()
    }

    fn gradient(&self, operand: usize, operands: &[DispatchTensor], of_output: &DispatchTensor) -> DispatchTensor {
        let gradient = match operand {
            0 => matrix(of_output).matmul(matrix(&operands[1]).transpose()),
            1 => matrix(&operands[0]).transpose().matmul(matrix(of_output)),
            _ => matrix(of_output).sum_dim(0),
        };
        gradient.into_dispatch()
    }
}

#[test]
fn an_operation_of_a_users_own_is_deferred_with_up_to_four_operands() {
    for biases in 0..4 {
        let (x, w) = (leaf(1, [7, 5]), leaf(2, [5, 3]));
        let biases: Vec<Tensor<2>> = (0..biases).map(|i| leaf(3 + i, [1, 3])).collect();
        let operands = || -> Vec<DispatchTensor> {
            let biases = biases.iter().map(|bias| bias.clone().into_dispatch());
            [x.clone().into_dispatch(), w.clone().into_dispatch()].into_iter().chain(biases).collect()
        };
        let run = || Tensor::<2>::from_dispatch(deferred(Affine, operands()));
        let rows = |g: &Gradients| -> Rows { [&x, &w].into_iter().chain(&biases).map(|t| row(t, g)).collect() };
        if operands().len() <= 4 {
            assert_deferred("affine", 1, 1, run, run, rows);
        } else {
            let (expected, deferral) = (rows(&backward(run())), Deferral::default());
            assert_eq!((rows(&backward(deferral.scope(run))), deferral.waiting()), (expected, 0));
        }
    }
}

/// An operation that returns the output's gradient as that of one operand, whatever its shape.
#[derive(Debug)]
pub(super) struct Wrong {
    pub(super) operand: usize,
}

impl DeferredOp for Wrong {
    fn name(&self) -> &'static str {
        "wrong"
    }

    fn forward(&self, operands: &[DispatchTensor]) -> DispatchTensor {
        Affine.forward(operands)
    }

    fn gradient(&self, operand: usize, operands: &[DispatchTensor], of_output: &DispatchTensor) -> DispatchTensor {
        if operand == self.operand { of_output.clone() } else { Affine.gradient(operand, operands, of_output) }
    }
}

#[test]
fn a_gradient_of_the_wrong_shape_is_refused_by_name() {
    for operand in [0, 1] {
        let (x, w, deferral) = (leaf(1, [7, 5]), leaf(2, [5, 3]), Deferral::default());
        let operands = vec![x.mul_scalar(2.0).into_dispatch(), w.into_dispatch()];
        let y = Tensor::<2>::from_dispatch(deferral.scope(|| deferred(Wrong { operand }, operands)));
        let mut gradients = backward(y);
        assert_eq!(deferral.check().is_err(), operand == 0, "an input's gradient is refused in backward");
        if operand == 1 {
            let error = deferral.run(&mut gradients).unwrap_err();
            assert_eq!((error.operation, error.operand), ("wrong", 1));
            assert_eq!((error.got, error.expected), (vec![7, 3], vec![5, 3]));
        }
    }
}
