//! The operations over autodiff. Each differentiated one records a graph node with its own backward. All others run on
//! the inner backend, and their results are not tracked.

use super::backend::MoeOps;
use super::node::record;
use super::options::{InjectedLoss, InjectedWeights, RouteOptions};
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::{FloatTensor as Floats, IntTensor as Ints};
use burn::backend::{Autodiff, AutodiffBackend, Backend, TensorMetadata};
use burn::tensor::DType;

impl<B: Backend + MoeOps, C: CheckpointStrategy> MoeOps for Autodiff<B, C> {
    fn inject_loss(hidden: Floats<Self>, loss: Floats<Self>, scale: Floats<Self>, share: InjectedLoss) -> Floats<Self> {
        let ((hidden, hidden_node), (_, loss_node)) = (hidden.into_parts(), loss.into_parts());
        let state = (scale.into_primitive(), share);
        record::<B, C, _, 2>([hidden_node, loss_node], state, hidden, |(scale, share), of_hidden, operand| {
            if operand == 0 { of_hidden } else { share.gradient::<B>(scale) }
        })
    }

    fn injected_gradients(
        scale: Floats<Self>,
        weights: InjectedWeights,
        dtype: DType,
    ) -> (Floats<Self>, Floats<Self>, Floats<Self>) {
        let (first, second, third) = B::injected_gradients(Self::inner(scale), weights, dtype);
        (Self::from_inner(first), Self::from_inner(second), Self::from_inner(third))
    }

    fn z_loss(logits: Floats<Self>) -> (Floats<Self>, Floats<Self>) {
        let (logits, node) = logits.into_parts();
        let (loss, log_sums) = B::z_loss(logits.clone());
        let loss = record::<B, C, _, 1>([node], (logits, log_sums.clone()), loss, |(logits, log_sums), of_loss, _| {
            B::z_loss_backward(logits, log_sums, of_loss)
        });
        (loss, Self::from_inner(log_sums))
    }

    fn z_loss_backward(logits: Floats<Self>, log_sums: Floats<Self>, of_loss: Floats<Self>) -> Floats<Self> {
        Self::from_inner(B::z_loss_backward(Self::inner(logits), Self::inner(log_sums), Self::inner(of_loss)))
    }

    fn route(
        logits: Floats<Self>,
        bias: Floats<Self>,
        options: RouteOptions,
    ) -> (Floats<Self>, Ints<Self>, Ints<Self>) {
        let (logits, node) = logits.into_parts();
        let (row, experts, load) = B::route(logits.clone(), Self::inner(bias), options);
        let state = (logits, experts.clone(), options);
        let row = record::<B, C, _, 1>([node], state, row, |(logits, experts, options), of_row, _| {
            B::route_backward(logits, experts, of_row, options)
        });
        (row, experts, load)
    }

    fn route_backward(
        logits: Floats<Self>,
        experts: Ints<Self>,
        of_row: Floats<Self>,
        options: RouteOptions,
    ) -> Floats<Self> {
        Self::from_inner(B::route_backward(Self::inner(logits), experts, Self::inner(of_row), options))
    }

    fn place(experts: Ints<Self>, load: Ints<Self>, capacity: usize) -> (Ints<Self>, Ints<Self>, Ints<Self>) {
        B::place(experts, load, capacity)
    }

    fn permute(tokens: Floats<Self>, choice_of_row: Ints<Self>, row_of_choice: Ints<Self>) -> Floats<Self> {
        let (tokens, node) = tokens.into_parts();
        let state = (row_of_choice.clone(), tokens.shape()[0]);
        let rows = B::permute(tokens, choice_of_row, row_of_choice);
        record::<B, C, _, 1>([node], state, rows, |(row_of_choice, tokens), of_rows, _| {
            B::permute_backward(of_rows, row_of_choice, tokens)
        })
    }

    fn permute_backward(of_rows: Floats<Self>, row_of_choice: Ints<Self>, tokens: usize) -> Floats<Self> {
        Self::from_inner(B::permute_backward(Self::inner(of_rows), row_of_choice, tokens))
    }

    fn unpermute(
        rows: Floats<Self>,
        gates: Floats<Self>,
        choice_of_row: Ints<Self>,
        row_of_choice: Ints<Self>,
    ) -> Floats<Self> {
        let ((rows, rows_node), (gates, gates_node)) = (rows.into_parts(), gates.into_parts());
        let state = (rows.clone(), gates.clone(), choice_of_row.clone(), row_of_choice.clone());
        let tokens = B::unpermute(rows, gates, choice_of_row, row_of_choice);
        let gradient = |(rows, gates, choice_of_row, row_of_choice), of_tokens, operand| match operand {
            0 => B::unpermute_rows_backward(of_tokens, gates, choice_of_row),
            _ => B::unpermute_gates_backward(of_tokens, rows, row_of_choice),
        };
        record::<B, C, _, 2>([rows_node, gates_node], state, tokens, gradient)
    }

    fn unpermute_rows_backward(
        of_tokens: Floats<Self>,
        gates: Floats<Self>,
        choice_of_row: Ints<Self>,
    ) -> Floats<Self> {
        Self::from_inner(B::unpermute_rows_backward(Self::inner(of_tokens), Self::inner(gates), choice_of_row))
    }

    fn unpermute_gates_backward(
        of_tokens: Floats<Self>,
        rows: Floats<Self>,
        row_of_choice: Ints<Self>,
    ) -> Floats<Self> {
        Self::from_inner(B::unpermute_gates_backward(Self::inner(of_tokens), Self::inner(rows), row_of_choice))
    }

    fn grouped_matmul(rows: Floats<Self>, weight: Floats<Self>, offsets: Ints<Self>) -> Floats<Self> {
        let ((rows, rows_node), (weight, weight_node)) = (rows.into_parts(), weight.into_parts());
        let state = (rows.clone(), weight.clone(), offsets.clone());
        let output = B::grouped_matmul(rows, weight, offsets);
        let gradient = |(rows, weight, offsets), of_output, operand| match operand {
            0 => B::grouped_matmul_input(of_output, weight, offsets),
            _ => B::grouped_matmul_weight(rows, of_output, offsets),
        };
        record::<B, C, _, 2>([rows_node, weight_node], state, output, gradient)
    }

    fn grouped_matmul_input(of_output: Floats<Self>, weight: Floats<Self>, offsets: Ints<Self>) -> Floats<Self> {
        Self::from_inner(B::grouped_matmul_input(Self::inner(of_output), Self::inner(weight), offsets))
    }

    fn grouped_matmul_weight(rows: Floats<Self>, of_output: Floats<Self>, offsets: Ints<Self>) -> Floats<Self> {
        Self::from_inner(B::grouped_matmul_weight(Self::inner(rows), Self::inner(of_output), offsets))
    }
}
