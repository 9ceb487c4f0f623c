//! The operations composed of Burn's own, for backends without kernels.

use super::{MoeOps, RouteOptions, grouped, route, rows, z_loss};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, DispatchKindConversion, DispatchTensor};
use burn::tensor::{Int, Tensor};

/// A tensor of the surface API from a backend's.
fn float<B: Backend, const D: usize>(tensor: FloatTensor<B>) -> Tensor<D>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    Tensor::from_primitive::<B>(tensor)
}

fn int<B: Backend, const D: usize>(tensor: IntTensor<B>) -> Tensor<D, Int>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    Tensor::from_primitive::<B>(tensor)
}

/// The backend's own tensor again.
fn raw<B: Backend, const D: usize>(tensor: Tensor<D>) -> FloatTensor<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    tensor.try_into_primitive::<B>().expect("operations on tensors of one backend stay on it")
}

fn raw_int<B: Backend, const D: usize>(tensor: Tensor<D, Int>) -> IntTensor<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    tensor.try_into_primitive::<B>().expect("operations on tensors of one backend stay on it")
}

macro_rules! compose {
    ($backend:ty) => {
        impl MoeOps for $backend {
            fn z_loss(logits: FloatTensor<Self>) -> (FloatTensor<Self>, FloatTensor<Self>) {
                let (loss, log_sums) = z_loss::composed(float::<Self, 2>(logits));
                (raw::<Self, 1>(loss), raw::<Self, 1>(log_sums))
            }

            fn z_loss_backward(
                logits: FloatTensor<Self>,
                log_sums: FloatTensor<Self>,
                of_loss: FloatTensor<Self>,
            ) -> FloatTensor<Self> {
                let (logits, log_sums) = (float::<Self, 2>(logits), float::<Self, 1>(log_sums));
                raw::<Self, 2>(z_loss::composed_backward(logits, log_sums, float::<Self, 1>(of_loss)))
            }

            fn route(
                logits: FloatTensor<Self>,
                bias: FloatTensor<Self>,
                options: RouteOptions,
            ) -> (FloatTensor<Self>, IntTensor<Self>, IntTensor<Self>) {
                let (row, experts, load) = route::composed(float::<Self, 2>(logits), float::<Self, 1>(bias), options);
                (raw::<Self, 1>(row), raw_int::<Self, 2>(experts), raw_int::<Self, 1>(load))
            }

            fn route_backward(
                logits: FloatTensor<Self>,
                experts: IntTensor<Self>,
                of_row: FloatTensor<Self>,
                options: RouteOptions,
            ) -> FloatTensor<Self> {
                let (logits, experts) = (float::<Self, 2>(logits), int::<Self, 2>(experts));
                raw::<Self, 2>(route::composed_backward(logits, experts, float::<Self, 1>(of_row), options))
            }

            fn place(
                experts: IntTensor<Self>,
                load: IntTensor<Self>,
                capacity: usize,
            ) -> (IntTensor<Self>, IntTensor<Self>, IntTensor<Self>) {
                let (offsets, row_of_choice, choice_of_row) =
                    rows::composed_place(int::<Self, 2>(experts), int::<Self, 1>(load), capacity);
                (raw_int::<Self, 1>(offsets), raw_int::<Self, 1>(row_of_choice), raw_int::<Self, 1>(choice_of_row))
            }

            fn permute(
                tokens: FloatTensor<Self>,
                choice_of_row: IntTensor<Self>,
                _row_of_choice: IntTensor<Self>,
            ) -> FloatTensor<Self> {
                raw::<Self, 2>(rows::spread(float::<Self, 2>(tokens), None, int::<Self, 1>(choice_of_row)))
            }

            fn permute_backward(
                of_rows: FloatTensor<Self>,
                row_of_choice: IntTensor<Self>,
                tokens: usize,
            ) -> FloatTensor<Self> {
                raw::<Self, 2>(rows::collect(float::<Self, 2>(of_rows), None, int::<Self, 1>(row_of_choice), tokens))
            }

            fn unpermute(
                rows: FloatTensor<Self>,
                gates: FloatTensor<Self>,
                _choice_of_row: IntTensor<Self>,
                row_of_choice: IntTensor<Self>,
            ) -> FloatTensor<Self> {
                let gates = float::<Self, 2>(gates);
                let [tokens, _] = gates.dims();
                let rows = float::<Self, 2>(rows);
                raw::<Self, 2>(rows::collect(rows, Some(gates), int::<Self, 1>(row_of_choice), tokens))
            }

            fn unpermute_rows_backward(
                of_tokens: FloatTensor<Self>,
                gates: FloatTensor<Self>,
                choice_of_row: IntTensor<Self>,
            ) -> FloatTensor<Self> {
                let gates = Some(float::<Self, 2>(gates));
                raw::<Self, 2>(rows::spread(float::<Self, 2>(of_tokens), gates, int::<Self, 1>(choice_of_row)))
            }

            fn unpermute_gates_backward(
                of_tokens: FloatTensor<Self>,
                rows: FloatTensor<Self>,
                row_of_choice: IntTensor<Self>,
            ) -> FloatTensor<Self> {
                let (of_tokens, rows) = (float::<Self, 2>(of_tokens), float::<Self, 2>(rows));
                raw::<Self, 2>(rows::composed_gates_backward(of_tokens, rows, int::<Self, 1>(row_of_choice)))
            }

            fn grouped_matmul(
                rows: FloatTensor<Self>,
                weight: FloatTensor<Self>,
                offsets: IntTensor<Self>,
            ) -> FloatTensor<Self> {
                let (rows, weight) = (float::<Self, 2>(rows), float::<Self, 3>(weight));
                raw::<Self, 2>(grouped::composed(rows, weight, int::<Self, 1>(offsets)))
            }

            fn grouped_matmul_input(
                of_output: FloatTensor<Self>,
                weight: FloatTensor<Self>,
                offsets: IntTensor<Self>,
            ) -> FloatTensor<Self> {
                let (of_output, weight) = (float::<Self, 2>(of_output), float::<Self, 3>(weight));
                raw::<Self, 2>(grouped::composed(of_output, weight.swap_dims(1, 2), int::<Self, 1>(offsets)))
            }

            fn grouped_matmul_weight(
                rows: FloatTensor<Self>,
                of_output: FloatTensor<Self>,
                offsets: IntTensor<Self>,
            ) -> FloatTensor<Self> {
                let (rows, of_output) = (float::<Self, 2>(rows), float::<Self, 2>(of_output));
                raw::<Self, 3>(grouped::composed_weight(rows, of_output, int::<Self, 1>(offsets)))
            }
        }
    };
}

#[cfg(feature = "flex")]
compose!(burn::backend::Flex);

#[cfg(feature = "traced")]
compose!(burn::backend::Capture);
