//! Auxiliary losses of routers, as functions of a router's outputs.
//!
//! Each is a mean over the tokens of one call (a microbatch), one element, on its paper's scale. Module
//! [`auxiliary`](crate::auxiliary) weighs them and averages over layers.
//!
//! A loss has the element type of its input. In half precision it is computed in f32, and rounded once.

use crate::ops::{accumulator, z_loss};
use burn::tensor::activation::log_sigmoid;
use burn::tensor::{Bool, FloatDType, Int, Tensor};

/// Load-balancing loss `E * sum_e f_e P_e` of a router over `E` experts.
///
/// `f_e` is the share of choices for expert `e` (without gradient), `P_e` its mean probability. The loss is 1 if both
/// are even, and up to `E` if one expert gets everything. Fedus et al., "Switch Transformers" (2021), equation 4, with
/// `k` choices per token counted as in GShard.
///
/// Shapes: probabilities `[tokens, E]` (or their mean, `[1, E]`), load (the number of choices for each expert) `[E]`.
pub fn load_balance(probabilities: Tensor<2>, load: Tensor<1, Int>) -> Tensor<1> {
    let ([_, experts], own) = (probabilities.dims(), probabilities.dtype());
    // f16 has no number above 65,504, and there may be more choices.
    let wide = FloatDType::from(accumulator(own));
    let mean = probabilities.cast(wide).mean_dim(0).reshape([experts]);
    let load = load.cast(wide);
    let share = load.clone() / load.sum().clamp_min(1.0).expand([experts]);
    (mean * share).sum().mul_scalar(experts as f64).cast(own)
}

/// Router z-loss: the mean over tokens of `logsumexp(logits)^2`, which keeps logits small.
///
/// Zoph et al., "ST-MoE" (2022), equation 5. Shape of the logits: `[tokens, experts]`.
pub fn router_z(logits: Tensor<2>) -> Tensor<1> {
    z_loss(logits)
}

/// Router loss of a mixture of depths: the binary cross-entropy of "this token was chosen".
///
/// It trains a router that can decide token by token in generation, when later tokens are unknown. Raposo et al.,
/// "Mixture-of-Depths" (2024), section 3.5. Shapes: both `[batch, sequence]`.
pub fn depth_router(logits: Tensor<2>, chosen: Tensor<2, Bool>) -> Tensor<1> {
    let own = logits.dtype();
    let logits = logits.cast(accumulator(own));
    let of_chosen = log_sigmoid(logits.clone());
    let of_others = log_sigmoid(logits.neg());
    of_others.mask_where(chosen, of_chosen).mean().neg().cast(own)
}
