//! The operations as a backend extension: one trait, implemented for Flex, captures, CubeCL and autodiff.

use super::options::{InjectedLoss, InjectedWeights, RouteOptions};
#[cfg(feature = "fusion")]
use super::{fused, specs};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, backend_extension};
use burn::tensor::DType;

/// The operations of this crate on every backend. Users call them through functions, not through this trait.
///
/// Methods whose names end in `backward`, `_input` or `_weight` are not differentiated.
#[backend_extension(
    Flex,
    Cube: cfg(feature = "cubecl-backend"),
    Capture,
    Autodiff,
    Fusion: cfg(feature = "fusion"),
)]
pub trait MoeOps: Backend {
    /// Joins a loss to the graph of hidden states; see [`inject_weighted`](super::inject_weighted).
    ///
    /// Without autodiff there is no graph: the hidden states are returned unchanged.
    #[fusion(default)]
    fn inject_loss(
        hidden: FloatTensor<Self>,
        loss: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        share: InjectedLoss,
    ) -> FloatTensor<Self> {
        let _ = (loss, scale, share);
        hidden
    }

    /// The gradient `[1]` of each bucket: the scale `[1]` times its weight, in the element type of the losses.
    #[fusion(meta = fused::injected)]
    fn injected_gradients(
        scale: FloatTensor<Self>,
        weights: InjectedWeights,
        dtype: DType,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// The z-loss `[1]` of logits `[t, e]`, and the log-sum-exp of each token `[t]`, which has no gradient.
    #[fusion(meta = fused::z_loss)]
    fn z_loss(logits: FloatTensor<Self>) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// The gradient of the logits, given the log-sum-exps and the loss's gradient `[1]`.
    #[fusion(dtype = logits, shape = logits)]
    fn z_loss_backward(
        logits: FloatTensor<Self>,
        log_sums: FloatTensor<Self>,
        of_loss: FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    /// Gates `[t, k]` and mean probabilities `[e]` in one tensor `[t * k + e]`; chosen experts `[t, k]`; load `[e]`.
    #[fusion(meta = fused::route)]
    fn route(
        logits: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        options: RouteOptions,
    ) -> (FloatTensor<Self>, IntTensor<Self>, IntTensor<Self>);

    /// The gradient of the logits, given that of the first output of `route`.
    #[fusion(dtype = logits, shape = logits)]
    fn route_backward(
        logits: FloatTensor<Self>,
        experts: IntTensor<Self>,
        of_row: FloatTensor<Self>,
        options: RouteOptions,
    ) -> FloatTensor<Self>;

    /// The first row of each expert `[e + 1]`, the row of each choice `[t * k]`, and the choice of each row `[t * k]`.
    #[fusion(meta = fused::place)]
    fn place(
        experts: IntTensor<Self>,
        load: IntTensor<Self>,
        capacity: usize,
    ) -> (IntTensor<Self>, IntTensor<Self>, IntTensor<Self>);

    /// Copies tokens `[t, d]` to rows `[t * k, d]`.
    #[fusion(dtype = tokens, shape = specs::rows(choice_of_row, tokens))]
    fn permute(
        tokens: FloatTensor<Self>,
        choice_of_row: IntTensor<Self>,
        row_of_choice: IntTensor<Self>,
    ) -> FloatTensor<Self>;

    /// The gradient of the tokens, given that of the rows.
    #[fusion(dtype = of_rows, shape = specs::tokens(of_rows, tokens))]
    fn permute_backward(of_rows: FloatTensor<Self>, row_of_choice: IntTensor<Self>, tokens: usize)
    -> FloatTensor<Self>;

    /// The sum of each token's rows `[t * k, d]`, weighted by gates `[t, k]`: `[t, d]`.
    #[fusion(dtype = rows, shape = specs::rows(gates, rows))]
    fn unpermute(
        rows: FloatTensor<Self>,
        gates: FloatTensor<Self>,
        choice_of_row: IntTensor<Self>,
        row_of_choice: IntTensor<Self>,
    ) -> FloatTensor<Self>;

    /// The gradient of the rows, given that of the tokens.
    #[fusion(dtype = of_tokens, shape = specs::rows(choice_of_row, of_tokens))]
    fn unpermute_rows_backward(
        of_tokens: FloatTensor<Self>,
        gates: FloatTensor<Self>,
        choice_of_row: IntTensor<Self>,
    ) -> FloatTensor<Self>;

    /// The gradient of the gates, given that of the tokens.
    #[fusion(dtype = of_tokens, shape = specs::gates(of_tokens, rows))]
    fn unpermute_gates_backward(
        of_tokens: FloatTensor<Self>,
        rows: FloatTensor<Self>,
        row_of_choice: IntTensor<Self>,
    ) -> FloatTensor<Self>;

    /// Each expert's rows of `[n, d]` times its matrix of `[e, d, h]`; rows of no expert are zero.
    #[fusion(dtype = rows, shape = specs::product(rows, weight))]
    fn grouped_matmul(
        rows: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        offsets: IntTensor<Self>,
    ) -> FloatTensor<Self>;

    /// The gradient of the rows of [`MoeOps::grouped_matmul`].
    #[fusion(dtype = of_output, shape = specs::product_input(of_output, weight))]
    fn grouped_matmul_input(
        of_output: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        offsets: IntTensor<Self>,
    ) -> FloatTensor<Self>;

    /// The gradient of the matrices of [`MoeOps::grouped_matmul`].
    #[fusion(dtype = rows, shape = specs::product_weight(rows, of_output, offsets))]
    fn grouped_matmul_weight(
        rows: FloatTensor<Self>,
        of_output: FloatTensor<Self>,
        offsets: IntTensor<Self>,
    ) -> FloatTensor<Self>;
}
