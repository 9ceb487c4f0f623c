//! The operations over autodiff: each records a step of the graph with a backward of its own.

use super::backend::MoeOps;
use super::options::{InjectedLoss, InjectedWeights, RouteOptions};
use super::untracked::untracked;
use super::{grouped, inject, route, rows, z_loss};
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, AutodiffBackend, Backend};
use burn::tensor::DType;

impl<B: Backend + MoeOps, C: CheckpointStrategy> MoeOps for Autodiff<B, C> {
    fn inject_loss(
        hidden: FloatTensor<Self>,
        loss: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        share: InjectedLoss,
    ) -> FloatTensor<Self> {
        inject::join::<B, C>(hidden, loss, scale, share)
    }

    fn injected_gradients(
        scale: FloatTensor<Self>,
        weights: InjectedWeights,
        dtype: DType,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let (first, second, third) = B::injected_gradients(Self::inner(scale), weights, dtype);
        (untracked::<B, C>(first), untracked::<B, C>(second), untracked::<B, C>(third))
    }

    fn z_loss(logits: FloatTensor<Self>) -> (FloatTensor<Self>, FloatTensor<Self>) {
        z_loss::record::<B, C>(logits)
    }

    fn z_loss_backward(
        logits: FloatTensor<Self>,
        log_sums: FloatTensor<Self>,
        of_loss: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        untracked::<B, C>(B::z_loss_backward(Self::inner(logits), Self::inner(log_sums), Self::inner(of_loss)))
    }

    fn route(
        logits: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        options: RouteOptions,
    ) -> (FloatTensor<Self>, IntTensor<Self>, IntTensor<Self>) {
        route::record::<B, C>(logits, Self::inner(bias), options)
    }

    fn route_backward(
        logits: FloatTensor<Self>,
        experts: IntTensor<Self>,
        of_row: FloatTensor<Self>,
        options: RouteOptions,
    ) -> FloatTensor<Self> {
        untracked::<B, C>(B::route_backward(Self::inner(logits), experts, Self::inner(of_row), options))
    }

    fn place(
        experts: IntTensor<Self>,
        load: IntTensor<Self>,
        capacity: usize,
    ) -> (IntTensor<Self>, IntTensor<Self>, IntTensor<Self>) {
        B::place(experts, load, capacity)
    }

    fn permute(
        tokens: FloatTensor<Self>,
        choice_of_row: IntTensor<Self>,
        row_of_choice: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        rows::record_permute::<B, C>(tokens, choice_of_row, row_of_choice)
    }

    fn permute_backward(
        of_rows: FloatTensor<Self>,
        row_of_choice: IntTensor<Self>,
        tokens: usize,
    ) -> FloatTensor<Self> {
        untracked::<B, C>(B::permute_backward(Self::inner(of_rows), row_of_choice, tokens))
    }

    fn unpermute(
        rows: FloatTensor<Self>,
        gates: FloatTensor<Self>,
        choice_of_row: IntTensor<Self>,
        row_of_choice: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        rows::record_unpermute::<B, C>(rows, gates, choice_of_row, row_of_choice)
    }

    fn unpermute_rows_backward(
        of_tokens: FloatTensor<Self>,
        gates: FloatTensor<Self>,
        choice_of_row: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        untracked::<B, C>(B::unpermute_rows_backward(Self::inner(of_tokens), Self::inner(gates), choice_of_row))
    }

    fn unpermute_gates_backward(
        of_tokens: FloatTensor<Self>,
        rows: FloatTensor<Self>,
        row_of_choice: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        untracked::<B, C>(B::unpermute_gates_backward(Self::inner(of_tokens), Self::inner(rows), row_of_choice))
    }

    fn grouped_matmul(
        rows: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        offsets: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        grouped::record::<B, C>(rows, weight, offsets)
    }

    fn grouped_matmul_input(
        of_output: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        offsets: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        untracked::<B, C>(B::grouped_matmul_input(Self::inner(of_output), Self::inner(weight), offsets))
    }

    fn grouped_matmul_weight(
        rows: FloatTensor<Self>,
        of_output: FloatTensor<Self>,
        offsets: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        untracked::<B, C>(B::grouped_matmul_weight(Self::inner(rows), Self::inner(of_output), offsets))
    }
}
