//! Operations beneath Burn's autodiff that a mixture of experts needs.
//!
//! [`MoeOps`] is a backend extension: on Flex and in captures its operations are composed of Burn's own, on CubeCL
//! devices (feature `cubecl-backend`) they are kernels, and over autodiff they have a backward of their own. Users
//! reach them through functions on tensors:
//!
//! 1. [`route`](fn@route): scores, the best experts, gates, and what load balancing looks at.
//! 2. [`z_loss`](fn@z_loss): the mean of squared log-sum-exps.
//! 3. [`PackedRows`]: tokens sorted by expert, and back.
//! 4. [`grouped_matmul`](fn@grouped_matmul): each expert's rows, as many as it has, times its own matrix.
//! 5. [`inject_weighted`]: losses beside hidden states. Its forward is the identity; the kernel is its backward's.
//!
//! Kernels accumulate in f32 (f64 for f64), use no atomics and no shared memory, and give the same bits every time. A
//! stage that is captured for a CubeCL device records the operations whole, forward and backward, and its replay runs
//! the kernels; captured for another device it records the composed forms.

mod captured;
mod forms;
#[cfg(feature = "fusion")]
mod fused;
mod grouped;
mod inject;
#[cfg(feature = "cubecl-backend")]
mod kernels;
mod plain;
mod route;
mod rows;
mod z_loss;

pub use grouped::grouped_matmul;
pub use inject::{BUCKETS, InjectedWeights, Share, inject, inject_weighted};
pub use route::{RouteOptions, Routed, route};
pub use rows::PackedRows;
pub use z_loss::z_loss;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, AutodiffBackend, Backend, backend_extension};
use burn::tensor::{DType, Device, Tensor};

/// Operations of this crate on every backend; users reach them through functions, not this trait.
///
/// Methods whose names end in `backward`, `_input` or `_weight` are not differentiated.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cubecl-backend"),
    Capture,
    Autodiff,
    Fusion: cfg(feature = "fusion"),
)]
pub trait MoeOps: Backend {
    /// Joins a loss to the graph of hidden states; see [`inject_weighted`].
    ///
    /// Without autodiff there is no graph: the hidden states are returned unchanged.
    #[fusion(default)]
    fn inject_loss(
        hidden: FloatTensor<Self>,
        loss: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        share: Share,
    ) -> FloatTensor<Self> {
        let _ = (loss, scale, share);
        hidden
    }

    /// The scale `[1]` times each weight, `[1]` each, in the element type of the losses whose gradients they are.
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

    /// Gates `[t, k]` and then mean probabilities `[e]` in one row; chosen experts `[t, k]`; load `[e]`.
    #[fusion(meta = fused::route)]
    fn route(
        logits: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        options: RouteOptions,
    ) -> (FloatTensor<Self>, IntTensor<Self>, IntTensor<Self>);

    /// The gradient of the logits, given that of the row that `route` gives.
    #[fusion(dtype = logits, shape = logits)]
    fn route_backward(
        logits: FloatTensor<Self>,
        experts: IntTensor<Self>,
        of_row: FloatTensor<Self>,
        options: RouteOptions,
    ) -> FloatTensor<Self>;

    /// First rows of experts `[e + 1]`, the row of each choice `[t * k]`, and the choice of each row `[t * k]`.
    #[fusion(meta = fused::place)]
    fn place(
        experts: IntTensor<Self>,
        load: IntTensor<Self>,
        capacity: usize,
    ) -> (IntTensor<Self>, IntTensor<Self>, IntTensor<Self>);

    /// Tokens `[t, d]` as rows `[t * k, d]`.
    #[fusion(dtype = tokens, shape = forms::rows(choice_of_row, tokens))]
    fn permute(
        tokens: FloatTensor<Self>,
        choice_of_row: IntTensor<Self>,
        row_of_choice: IntTensor<Self>,
    ) -> FloatTensor<Self>;

    /// The gradient of the tokens, given that of the rows.
    #[fusion(dtype = of_rows, shape = forms::tokens(of_rows, tokens))]
    fn permute_backward(of_rows: FloatTensor<Self>, row_of_choice: IntTensor<Self>, tokens: usize)
    -> FloatTensor<Self>;

    /// Rows `[t * k, d]`, weighted by gates `[t, k]` and added up for each token, `[t, d]`.
    #[fusion(dtype = rows, shape = forms::rows(gates, rows))]
    fn unpermute(
        rows: FloatTensor<Self>,
        gates: FloatTensor<Self>,
        choice_of_row: IntTensor<Self>,
        row_of_choice: IntTensor<Self>,
    ) -> FloatTensor<Self>;

    /// The gradient of the rows, given that of the tokens.
    #[fusion(dtype = of_tokens, shape = forms::rows(choice_of_row, of_tokens))]
    fn unpermute_rows_backward(
        of_tokens: FloatTensor<Self>,
        gates: FloatTensor<Self>,
        choice_of_row: IntTensor<Self>,
    ) -> FloatTensor<Self>;

    /// The gradient of the gates, given that of the tokens.
    #[fusion(dtype = of_tokens, shape = forms::gates(of_tokens, rows))]
    fn unpermute_gates_backward(
        of_tokens: FloatTensor<Self>,
        rows: FloatTensor<Self>,
        row_of_choice: IntTensor<Self>,
    ) -> FloatTensor<Self>;

    /// Each expert's rows of `[n, d]` times its matrix of `[e, d, h]`; rows of no expert are zero.
    #[fusion(dtype = rows, shape = forms::product(rows, weight))]
    fn grouped_matmul(
        rows: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        offsets: IntTensor<Self>,
    ) -> FloatTensor<Self>;

    /// The gradient of the rows of [`MoeOps::grouped_matmul`].
    #[fusion(dtype = of_output, shape = forms::product_input(of_output, weight))]
    fn grouped_matmul_input(
        of_output: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        offsets: IntTensor<Self>,
    ) -> FloatTensor<Self>;

    /// The gradient of the matrices of [`MoeOps::grouped_matmul`].
    #[fusion(dtype = rows, shape = forms::product_weight(rows, of_output, offsets))]
    fn grouped_matmul_weight(
        rows: FloatTensor<Self>,
        of_output: FloatTensor<Self>,
        offsets: IntTensor<Self>,
    ) -> FloatTensor<Self>;
}

impl<B: Backend + MoeOps, C: CheckpointStrategy> MoeOps for Autodiff<B, C> {
    fn inject_loss(
        hidden: FloatTensor<Self>,
        loss: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        share: Share,
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

/// The type that numbers of this type are added up in.
fn accumulator(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

fn untracked<B: Backend, C: CheckpointStrategy>(tensor: FloatTensor<B>) -> FloatTensor<Autodiff<B, C>> {
    Autodiff::<B, C>::from_inner(tensor)
}

/// Is this tensor on a device where the operations of this module are kernels?
///
/// True on CubeCL devices, and for a stage that is captured for one: its replay runs the kernels.
pub fn has_kernels<const D: usize>(tensor: &Tensor<D>) -> bool {
    if is_captured(tensor) {
        return captured::for_kernels();
    }
    is_kernel_device(&tensor.device())
}

/// Is it the tensor of a capture?
fn is_captured<const D: usize>(tensor: &Tensor<D>) -> bool {
    use burn::backend::DispatchTensorKind;
    match tensor.clone().into_dispatch().kind {
        DispatchTensorKind::Capture(_) => true,
        DispatchTensorKind::Autodiff(inner) => matches!(*inner, DispatchTensorKind::Capture(_)),
        _ => false,
    }
}

/// Are the operations of this module kernels on this device?
fn is_kernel_device(device: &Device) -> bool {
    #[cfg(feature = "cubecl-backend")]
    {
        use burn::backend::DispatchDevice;
        matches!(device.clone().inner().as_dispatch(), DispatchDevice::Cube(_))
    }
    #[cfg(not(feature = "cubecl-backend"))]
    {
        let _ = device;
        false
    }
}
