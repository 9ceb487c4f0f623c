//! The operations composed of Burn's own, for backends without kernels. A capture records each as one node instead, if
//! the device that will replay it has kernels.

use super::backend::MoeOps;
use super::captured::{Kernel, recorded};
use super::options::{InjectedWeights, RouteOptions};
use super::{grouped, inject, route, rows, z_loss};
use burn::backend::tensor::{FloatTensor as Floats, IntTensor as Ints};
use burn::backend::{Backend, DispatchKindConversion, DispatchTensor};
use burn::tensor::{DType, Int, Tensor};

/// Converts a backend's tensor to a [`Tensor`].
fn float<B: Backend, const D: usize>(tensor: Floats<B>) -> Tensor<D>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    Tensor::from_primitive::<B>(tensor)
}

fn int<B: Backend, const D: usize>(tensor: Ints<B>) -> Tensor<D, Int>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    Tensor::from_primitive::<B>(tensor)
}

/// Converts a [`Tensor`] to the backend's own tensor.
fn raw<B: Backend, const D: usize>(tensor: Tensor<D>) -> Floats<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    tensor.try_into_primitive::<B>().expect("operations on tensors of one backend stay on it")
}

fn raw_int<B: Backend, const D: usize>(tensor: Tensor<D, Int>) -> Ints<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    tensor.try_into_primitive::<B>().expect("operations on tensors of one backend stay on it")
}

/// On a backend that computes, operations are always composed.
macro_rules! always_compose {
    ($($call:tt)*) => {};
}

/// In a capture, an operation is recorded as one node if the device has kernels.
macro_rules! record_or_compose {
    ($kernel:expr, [$($input:ident),*] => $outputs:pat => $given:expr) => {
        if let Some($outputs) = recorded($kernel, [$(&$input),*]) {
            return $given;
        }
    };
}

macro_rules! compose {
    ($backend:ty, $first:ident) => {
        impl MoeOps for $backend {
            fn injected_gradients(
                scale: Floats<Self>,
                weights: InjectedWeights,
                dtype: DType,
            ) -> (Floats<Self>, Floats<Self>, Floats<Self>) {
                $first!(Kernel::InjectedGradients { weights, dtype }, [scale] => [a, b, c] => (a, b, c));
                inject::composed_gradients(float::<Self, 1>(scale), weights, dtype).map(raw::<Self, 1>).into()
            }

            fn z_loss(logits: Floats<Self>) -> (Floats<Self>, Floats<Self>) {
                $first!(Kernel::ZLoss, [logits] => [loss, log_sums] => (loss, log_sums));
                let (loss, log_sums) = z_loss::composed(float::<Self, 2>(logits));
                (raw::<Self, 1>(loss), raw::<Self, 1>(log_sums))
            }

            fn z_loss_backward(logits: Floats<Self>, log_sums: Floats<Self>, of_loss: Floats<Self>) -> Floats<Self> {
                $first!(Kernel::ZLossBackward, [logits, log_sums, of_loss] => [of_logits] => of_logits);
                let (logits, log_sums) = (float::<Self, 2>(logits), float::<Self, 1>(log_sums));
                raw::<Self, 2>(z_loss::composed_backward(logits, log_sums, float::<Self, 1>(of_loss)))
            }

            fn route(
                logits: Floats<Self>,
                bias: Floats<Self>,
                options: RouteOptions,
            ) -> (Floats<Self>, Ints<Self>, Ints<Self>) {
                $first!(Kernel::Route(options), [logits, bias] => [row, experts, load] => (row, experts, load));
                let (row, experts, load) = route::composed(float::<Self, 2>(logits), float::<Self, 1>(bias), options);
                (raw::<Self, 1>(row), raw_int::<Self, 2>(experts), raw_int::<Self, 1>(load))
            }

            fn route_backward(
                logits: Floats<Self>,
                experts: Ints<Self>,
                of_row: Floats<Self>,
                options: RouteOptions,
            ) -> Floats<Self> {
                $first!(Kernel::RouteBackward(options), [logits, experts, of_row] => [of_logits] => of_logits);
                let (logits, experts) = (float::<Self, 2>(logits), int::<Self, 2>(experts));
                raw::<Self, 2>(route::composed_backward(logits, experts, float::<Self, 1>(of_row), options))
            }

            fn place(experts: Ints<Self>, load: Ints<Self>, capacity: usize) -> (Ints<Self>, Ints<Self>, Ints<Self>) {
                $first!(
                    Kernel::Place { capacity },
                    [experts, load] => [offsets, rows, choices] => (offsets, rows, choices)
                );
                let (offsets, row_of_choice, choice_of_row) =
                    rows::composed_place(int::<Self, 2>(experts), int::<Self, 1>(load), capacity);
                (raw_int::<Self, 1>(offsets), raw_int::<Self, 1>(row_of_choice), raw_int::<Self, 1>(choice_of_row))
            }

            fn permute(tokens: Floats<Self>, choice_of_row: Ints<Self>, row_of_choice: Ints<Self>) -> Floats<Self> {
                $first!(Kernel::Permute, [tokens, choice_of_row, row_of_choice] => [rows] => rows);
                let _ = row_of_choice;
                raw::<Self, 2>(rows::spread(float::<Self, 2>(tokens), None, int::<Self, 1>(choice_of_row)))
            }

            fn permute_backward(of_rows: Floats<Self>, row_of_choice: Ints<Self>, tokens: usize) -> Floats<Self> {
                $first!(Kernel::PermuteBackward { tokens }, [of_rows, row_of_choice] => [of_tokens] => of_tokens);
                raw::<Self, 2>(rows::collect(float::<Self, 2>(of_rows), None, int::<Self, 1>(row_of_choice), tokens))
            }

            fn unpermute(
                rows: Floats<Self>,
                gates: Floats<Self>,
                choice_of_row: Ints<Self>,
                row_of_choice: Ints<Self>,
            ) -> Floats<Self> {
                $first!(Kernel::Unpermute, [rows, gates, choice_of_row, row_of_choice] => [tokens] => tokens);
                let _ = choice_of_row;
                let gates = float::<Self, 2>(gates);
                let [tokens, _] = gates.dims();
                let rows = float::<Self, 2>(rows);
                raw::<Self, 2>(rows::collect(rows, Some(gates), int::<Self, 1>(row_of_choice), tokens))
            }

            fn unpermute_rows_backward(
                of_tokens: Floats<Self>,
                gates: Floats<Self>,
                choice_of_row: Ints<Self>,
            ) -> Floats<Self> {
                $first!(Kernel::UnpermuteRowsBackward, [of_tokens, gates, choice_of_row] => [of_rows] => of_rows);
                let gates = Some(float::<Self, 2>(gates));
                raw::<Self, 2>(rows::spread(float::<Self, 2>(of_tokens), gates, int::<Self, 1>(choice_of_row)))
            }

            fn unpermute_gates_backward(
                of_tokens: Floats<Self>,
                rows: Floats<Self>,
                row_of_choice: Ints<Self>,
            ) -> Floats<Self> {
                $first!(Kernel::UnpermuteGatesBackward, [of_tokens, rows, row_of_choice] => [of_gates] => of_gates);
                let (of_tokens, rows) = (float::<Self, 2>(of_tokens), float::<Self, 2>(rows));
                raw::<Self, 2>(rows::composed_gates_backward(of_tokens, rows, int::<Self, 1>(row_of_choice)))
            }

            fn grouped_matmul(rows: Floats<Self>, weight: Floats<Self>, offsets: Ints<Self>) -> Floats<Self> {
                $first!(Kernel::GroupedMatmul, [rows, weight, offsets] => [output] => output);
                let (rows, weight) = (float::<Self, 2>(rows), float::<Self, 3>(weight));
                raw::<Self, 2>(grouped::composed(rows, weight, int::<Self, 1>(offsets)))
            }

            fn grouped_matmul_input(
                of_output: Floats<Self>,
                weight: Floats<Self>,
                offsets: Ints<Self>,
            ) -> Floats<Self> {
                $first!(Kernel::GroupedMatmulInput, [of_output, weight, offsets] => [of_rows] => of_rows);
                let (of_output, weight) = (float::<Self, 2>(of_output), float::<Self, 3>(weight));
                raw::<Self, 2>(grouped::composed(of_output, weight.swap_dims(1, 2), int::<Self, 1>(offsets)))
            }

            fn grouped_matmul_weight(rows: Floats<Self>, of_output: Floats<Self>, offsets: Ints<Self>) -> Floats<Self> {
                $first!(Kernel::GroupedMatmulWeight, [rows, of_output, offsets] => [of_weight] => of_weight);
                let (rows, of_output) = (float::<Self, 2>(rows), float::<Self, 2>(of_output));
                raw::<Self, 3>(grouped::composed_weight(rows, of_output, int::<Self, 1>(offsets)))
            }
        }
    };
}

compose!(burn::backend::Flex, always_compose);

compose!(burn::backend::Capture, record_or_compose);
