//! The operations on CubeCL devices: each makes its tensors contiguous and launches its kernels.

use super::launch::{floats, integers};
use super::{assign_rows, grouped, inject, route, rows, z_loss};
use crate::ops::backend::MoeOps;
use crate::ops::options::{InjectedWeights, RouteOptions};
use crate::ops::specs::accumulator;
use burn::backend::tensor::{FloatTensor as Floats, IntTensor as Ints};
use burn::backend::{DType, TensorMetadata};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;

impl MoeOps for CubeBackend {
    fn injected_gradients(
        scale: Floats<Self>,
        weights: InjectedWeights,
        dtype: DType,
    ) -> (Floats<Self>, Floats<Self>, Floats<Self>) {
        inject::gradients(into_contiguous(scale), weights, dtype)
    }

    fn z_loss(logits: Floats<Self>) -> (Floats<Self>, Floats<Self>) {
        z_loss::forward(into_contiguous(logits))
    }

    fn z_loss_backward(logits: Floats<Self>, log_sums: Floats<Self>, of_loss: Floats<Self>) -> Floats<Self> {
        let dtype = logits.dtype;
        z_loss::backward(into_contiguous(logits), floats(log_sums, accumulator(dtype)), floats(of_loss, dtype))
    }

    fn route(
        logits: Floats<Self>,
        bias: Floats<Self>,
        options: RouteOptions,
    ) -> (Floats<Self>, Ints<Self>, Ints<Self>) {
        let dtype = logits.dtype;
        route::forward(into_contiguous(logits), floats(bias, dtype), options)
    }

    fn route_backward(
        logits: Floats<Self>,
        experts: Ints<Self>,
        of_row: Floats<Self>,
        options: RouteOptions,
    ) -> Floats<Self> {
        let dtype = logits.dtype;
        route::backward(into_contiguous(logits), integers(experts), floats(of_row, dtype), options)
    }

    fn place(experts: Ints<Self>, load: Ints<Self>, capacity: usize) -> (Ints<Self>, Ints<Self>, Ints<Self>) {
        assign_rows::forward(integers(experts), load.shape()[0], capacity)
    }

    fn permute(tokens: Floats<Self>, choice_of_row: Ints<Self>, _row_of_choice: Ints<Self>) -> Floats<Self> {
        rows::spread(into_contiguous(tokens), None, integers(choice_of_row))
    }

    fn permute_backward(of_rows: Floats<Self>, row_of_choice: Ints<Self>, tokens: usize) -> Floats<Self> {
        rows::collect(into_contiguous(of_rows), None, integers(row_of_choice), tokens)
    }

    fn unpermute(
        rows: Floats<Self>,
        gates: Floats<Self>,
        _choice_of_row: Ints<Self>,
        row_of_choice: Ints<Self>,
    ) -> Floats<Self> {
        let (tokens, gates) = (gates.shape()[0], floats(gates, rows.dtype));
        rows::collect(into_contiguous(rows), Some(gates), integers(row_of_choice), tokens)
    }

    fn unpermute_rows_backward(
        of_tokens: Floats<Self>,
        gates: Floats<Self>,
        choice_of_row: Ints<Self>,
    ) -> Floats<Self> {
        let gates = floats(gates, of_tokens.dtype);
        rows::spread(into_contiguous(of_tokens), Some(gates), integers(choice_of_row))
    }

    fn unpermute_gates_backward(
        of_tokens: Floats<Self>,
        rows: Floats<Self>,
        row_of_choice: Ints<Self>,
    ) -> Floats<Self> {
        let rows = floats(rows, of_tokens.dtype);
        rows::gates_backward(into_contiguous(of_tokens), rows, integers(row_of_choice))
    }

    fn grouped_matmul(rows: Floats<Self>, weight: Floats<Self>, offsets: Ints<Self>) -> Floats<Self> {
        let weight = floats(weight, rows.dtype);
        grouped::forward(into_contiguous(rows), weight, integers(offsets))
    }

    fn grouped_matmul_input(of_output: Floats<Self>, weight: Floats<Self>, offsets: Ints<Self>) -> Floats<Self> {
        let weight = floats(weight, of_output.dtype);
        grouped::input(into_contiguous(of_output), weight, integers(offsets))
    }

    fn grouped_matmul_weight(rows: Floats<Self>, of_output: Floats<Self>, offsets: Ints<Self>) -> Floats<Self> {
        let of_output = floats(of_output, rows.dtype);
        grouped::weight(into_contiguous(rows), of_output, integers(offsets))
    }
}
