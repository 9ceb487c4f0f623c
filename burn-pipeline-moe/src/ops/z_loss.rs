//! The router z-loss in one operation.
//!
//! Guarantees: the loss is the mean over tokens of `logsumexp(logits)^2`. Its gradient is
//! `2 / tokens * logsumexp * softmax(logits)`, with the log-sum-exps saved by the forward. Zoph et al., "ST-MoE"
//! (2022), equation 5. Half-precision logits are computed with in f32; the loss and the gradient are rounded once.

use super::backend::MoeOps;
use super::kernel_device::refuse_type;
use super::specs::accumulator;
use burn::backend::Dispatch;
use burn::tensor::Tensor;

/// The z-loss of logits `[tokens, experts]`, one element; 0 without tokens.
///
/// # Panics
/// Panics if a device with kernels does not compute in the logits' element type.
pub fn z_loss(logits: Tensor<2>) -> Tensor<1> {
    if logits.dims()[0] == 0 {
        return Tensor::zeros([1], (&logits.device(), logits.dtype()));
    }
    refuse_type(&logits);
    let (loss, _) = Dispatch::z_loss(logits.into_dispatch());
    Tensor::from_dispatch(loss)
}

/// The loss `[1]` and the log-sum-exp of each token, the latter in the type of sums.
pub(super) fn composed(logits: Tensor<2>) -> (Tensor<1>, Tensor<1>) {
    let ([tokens, _], own) = (logits.dims(), logits.dtype());
    let logits = logits.cast(accumulator(own));
    let largest = logits.clone().max_dim(1);
    let log_sums = (logits - largest.clone()).exp().sum_dim(1).log() + largest;
    (log_sums.clone().square().mean().cast(own), log_sums.reshape([tokens]))
}

pub(super) fn composed_backward(logits: Tensor<2>, log_sums: Tensor<1>, of_loss: Tensor<1>) -> Tensor<2> {
    let ([tokens, _], own) = (logits.dims(), logits.dtype());
    let wide = accumulator(own);
    let log_sums = log_sums.reshape([tokens, 1]);
    let of_log_sums = log_sums.clone().mul_scalar(2.0 / tokens as f64) * of_loss.cast(wide).unsqueeze::<2>();
    ((logits.cast(wide) - log_sums).exp() * of_log_sums).cast(own)
}
