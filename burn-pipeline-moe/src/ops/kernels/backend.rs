//! The operations on CubeCL devices: each makes its tensors contiguous and launches its kernels.

use super::launch::{floats, integers};
use super::{assign_rows, grouped, inject, route, rows, z_loss};
use crate::ops::backend::MoeOps;
use crate::ops::options::{InjectedWeights, RouteOptions};
use crate::ops::specs::accumulator;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{DType, TensorMetadata};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;

impl MoeOps for CubeBackend {
    fn injected_gradients(
        scale: FloatTensor<Self>,
        weights: InjectedWeights,
        dtype: DType,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        inject::gradients(into_contiguous(scale), weights, dtype)
    }

    fn z_loss(logits: FloatTensor<Self>) -> (FloatTensor<Self>, FloatTensor<Self>) {
        z_loss::forward(into_contiguous(logits))
    }

    fn z_loss_backward(
        logits: FloatTensor<Self>,
        log_sums: FloatTensor<Self>,
        of_loss: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let dtype = logits.dtype;
        z_loss::backward(into_contiguous(logits), floats(log_sums, accumulator(dtype)), floats(of_loss, dtype))
    }

    fn route(
        logits: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        options: RouteOptions,
    ) -> (FloatTensor<Self>, IntTensor<Self>, IntTensor<Self>) {
        let dtype = logits.dtype;
        route::forward(into_contiguous(logits), floats(bias, dtype), options)
    }

    fn route_backward(
        logits: FloatTensor<Self>,
        experts: IntTensor<Self>,
        of_row: FloatTensor<Self>,
        options: RouteOptions,
    ) -> FloatTensor<Self> {
        let dtype = logits.dtype;
        route::backward(into_contiguous(logits), integers(experts), floats(of_row, dtype), options)
    }

    fn place(
        experts: IntTensor<Self>,
        load: IntTensor<Self>,
        capacity: usize,
    ) -> (IntTensor<Self>, IntTensor<Self>, IntTensor<Self>) {
        assign_rows::forward(integers(experts), load.shape()[0], capacity)
    }

    fn permute(
        tokens: FloatTensor<Self>,
        choice_of_row: IntTensor<Self>,
        _row_of_choice: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        rows::spread(into_contiguous(tokens), None, integers(choice_of_row))
    }

    fn permute_backward(
        of_rows: FloatTensor<Self>,
        row_of_choice: IntTensor<Self>,
        tokens: usize,
    ) -> FloatTensor<Self> {
        rows::collect(into_contiguous(of_rows), None, integers(row_of_choice), tokens)
    }

    fn unpermute(
        rows: FloatTensor<Self>,
        gates: FloatTensor<Self>,
        _choice_of_row: IntTensor<Self>,
        row_of_choice: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        let (tokens, gates) = (gates.shape()[0], floats(gates, rows.dtype));
        rows::collect(into_contiguous(rows), Some(gates), integers(row_of_choice), tokens)
    }

    fn unpermute_rows_backward(
        of_tokens: FloatTensor<Self>,
        gates: FloatTensor<Self>,
        choice_of_row: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        let gates = floats(gates, of_tokens.dtype);
        rows::spread(into_contiguous(of_tokens), Some(gates), integers(choice_of_row))
    }

    fn unpermute_gates_backward(
        of_tokens: FloatTensor<Self>,
        rows: FloatTensor<Self>,
        row_of_choice: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        let rows = floats(rows, of_tokens.dtype);
        rows::gates_backward(into_contiguous(of_tokens), rows, integers(row_of_choice))
    }

    fn grouped_matmul(
        rows: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        offsets: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        let weight = floats(weight, rows.dtype);
        grouped::forward(into_contiguous(rows), weight, integers(offsets))
    }

    fn grouped_matmul_input(
        of_output: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        offsets: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        let weight = floats(weight, of_output.dtype);
        grouped::input(into_contiguous(of_output), weight, integers(offsets))
    }

    fn grouped_matmul_weight(
        rows: FloatTensor<Self>,
        of_output: FloatTensor<Self>,
        offsets: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        let of_output = floats(of_output, rows.dtype);
        grouped::weight(into_contiguous(rows), of_output, integers(offsets))
    }
}
