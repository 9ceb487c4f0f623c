//! The operations over autodiff. Each differentiated one records a graph node with its own backward, defined in the
//! operation's file. All others run on the inner backend, and their results are not tracked.

use super::backend::MoeOps;
use super::options::{InjectedLoss, InjectedWeights, RouteOptions};
use super::untracked::untracked;
use super::{grouped, inject, route, rows, z_loss};
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::{FloatTensor as Floats, IntTensor as Ints};
use burn::backend::{Autodiff, AutodiffBackend, Backend};
use burn::tensor::DType;

impl<B: Backend + MoeOps, C: CheckpointStrategy> MoeOps for Autodiff<B, C> {
    fn inject_loss(hidden: Floats<Self>, loss: Floats<Self>, scale: Floats<Self>, share: InjectedLoss) -> Floats<Self> {
        inject::join::<B, C>(hidden, loss, scale, share)
    }

    fn injected_gradients(
        scale: Floats<Self>,
        weights: InjectedWeights,
        dtype: DType,
    ) -> (Floats<Self>, Floats<Self>, Floats<Self>) {
        let (first, second, third) = B::injected_gradients(Self::inner(scale), weights, dtype);
        (untracked::<B, C>(first), untracked::<B, C>(second), untracked::<B, C>(third))
    }

    fn z_loss(logits: Floats<Self>) -> (Floats<Self>, Floats<Self>) {
        z_loss::record::<B, C>(logits)
    }

    fn z_loss_backward(logits: Floats<Self>, log_sums: Floats<Self>, of_loss: Floats<Self>) -> Floats<Self> {
        untracked::<B, C>(B::z_loss_backward(Self::inner(logits), Self::inner(log_sums), Self::inner(of_loss)))
    }

    fn route(
        logits: Floats<Self>,
        bias: Floats<Self>,
        options: RouteOptions,
    ) -> (Floats<Self>, Ints<Self>, Ints<Self>) {
        route::record::<B, C>(logits, Self::inner(bias), options)
    }

    fn route_backward(
        logits: Floats<Self>,
        experts: Ints<Self>,
        of_row: Floats<Self>,
        options: RouteOptions,
    ) -> Floats<Self> {
        untracked::<B, C>(B::route_backward(Self::inner(logits), experts, Self::inner(of_row), options))
    }

    fn place(experts: Ints<Self>, load: Ints<Self>, capacity: usize) -> (Ints<Self>, Ints<Self>, Ints<Self>) {
        B::place(experts, load, capacity)
    }

    fn permute(tokens: Floats<Self>, choice_of_row: Ints<Self>, row_of_choice: Ints<Self>) -> Floats<Self> {
        rows::record_permute::<B, C>(tokens, choice_of_row, row_of_choice)
    }

    fn permute_backward(of_rows: Floats<Self>, row_of_choice: Ints<Self>, tokens: usize) -> Floats<Self> {
        untracked::<B, C>(B::permute_backward(Self::inner(of_rows), row_of_choice, tokens))
    }

    fn unpermute(
        rows: Floats<Self>,
        gates: Floats<Self>,
        choice_of_row: Ints<Self>,
        row_of_choice: Ints<Self>,
    ) -> Floats<Self> {
        rows::record_unpermute::<B, C>(rows, gates, choice_of_row, row_of_choice)
    }

    fn unpermute_rows_backward(
        of_tokens: Floats<Self>,
        gates: Floats<Self>,
        choice_of_row: Ints<Self>,
    ) -> Floats<Self> {
        untracked::<B, C>(B::unpermute_rows_backward(Self::inner(of_tokens), Self::inner(gates), choice_of_row))
    }

    fn unpermute_gates_backward(
        of_tokens: Floats<Self>,
        rows: Floats<Self>,
        row_of_choice: Ints<Self>,
    ) -> Floats<Self> {
        untracked::<B, C>(B::unpermute_gates_backward(Self::inner(of_tokens), Self::inner(rows), row_of_choice))
    }

    fn grouped_matmul(rows: Floats<Self>, weight: Floats<Self>, offsets: Ints<Self>) -> Floats<Self> {
        grouped::record::<B, C>(rows, weight, offsets)
    }

    fn grouped_matmul_input(of_output: Floats<Self>, weight: Floats<Self>, offsets: Ints<Self>) -> Floats<Self> {
        untracked::<B, C>(B::grouped_matmul_input(Self::inner(of_output), Self::inner(weight), offsets))
    }

    fn grouped_matmul_weight(rows: Floats<Self>, of_output: Floats<Self>, offsets: Ints<Self>) -> Floats<Self> {
        untracked::<B, C>(B::grouped_matmul_weight(Self::inner(rows), Self::inner(of_output), offsets))
    }
}
