//! Routing in one operation: scores, the best experts of each token, gates, and the statistics of load balancing.
//!
//! Guarantees: gates and mean probabilities are differentiated, choices and load are not. The backward recomputes the
//! scores from the logits, so the graph does not hold them.
//!
//! 1. Scores are a softmax over experts, or a sigmoid of each logit; probabilities are the scores divided by their sum.
//! 2. The `k` experts with the largest score plus bias are chosen, best first; of equal ones the first. Gates are their
//!    scores, divided by the sum of the chosen scores if they are normalized.
//! 3. Gates and mean probabilities are one tensor, because an autodiff node in Burn has one output.
//!
//! Half-precision logits are computed with in f32; gates, means and gradients are rounded once.
//!
//! Scores and gates follow Shazeer et al. (2017) and DeepSeek-V3 (2024), the statistics Fedus et al., "Switch
//! Transformers" (2021), equations 5 and 6.

use super::backend::MoeOps;
use super::kernel_device::refuse_type;
use super::options::RouteOptions;
use super::specs::accumulator;
use super::top_k::top_k;
use burn::backend::Dispatch;
use burn::tensor::activation::{sigmoid, softmax};
use burn::tensor::{IndexingUpdateOp, Int, Tensor};

/// Added to sums of scores before a division, because all scores may be zero.
pub(super) const TINY: f32 = 1e-20;

/// The output of [`route`] for `t` tokens, `e` experts and `k` choices per token.
#[derive(Debug, Clone)]
pub struct Routed {
    /// Weights of the chosen experts `[t, k]`.
    pub gates: Tensor<2>,
    /// The mean probability of each expert over the tokens `[e]`.
    pub mean_probabilities: Tensor<1>,
    /// The chosen experts, best first, `[t, k]`.
    pub experts: Tensor<2, Int>,
    /// The number of choices for each expert `[e]`.
    pub load: Tensor<1, Int>,
}

/// Routes tokens by their logits `[t, e]`, with a bias `[e]` that is added to scores when choosing.
///
/// The bias is optional and not differentiated. Without tokens all probabilities are 0.
///
/// # Panics
/// Panics if `top_k` is 0 or more than the number of experts, if the bias does not have one number per expert, or if a
/// device with kernels does not compute in the element type.
pub fn route(logits: Tensor<2>, bias: Option<Tensor<1>>, options: RouteOptions) -> Routed {
    let ([tokens, experts], k) = (logits.dims(), options.top_k);
    assert!(k > 0 && k <= experts, "{k} of {experts} experts cannot be chosen");
    let none = || Tensor::zeros([experts], (&logits.device(), logits.dtype()));
    let bias = bias.map_or_else(none, |bias| bias.cast(logits.dtype()));
    assert_eq!(bias.dims(), [experts], "the bias must have one number per expert");
    if tokens == 0 {
        return no_tokens(&logits, k);
    }
    refuse_type(&logits);
    let (row, chosen, load) = Dispatch::route(logits.into_dispatch(), bias.into_dispatch(), options);
    let row = Tensor::<1>::from_dispatch(row);
    Routed {
        gates: row.clone().narrow(0, 0, tokens * k).reshape([tokens, k]),
        mean_probabilities: row.narrow(0, tokens * k, experts),
        experts: Tensor::from_dispatch(chosen),
        load: Tensor::from_dispatch(load),
    }
}

/// The output for zero tokens.
fn no_tokens(logits: &Tensor<2>, k: usize) -> Routed {
    let ([_, experts], device) = (logits.dims(), logits.device());
    Routed {
        gates: Tensor::zeros([0, k], (&device, logits.dtype())),
        mean_probabilities: Tensor::zeros([experts], (&device, logits.dtype())),
        experts: Tensor::zeros([0, k], &device),
        load: Tensor::zeros([experts], &device),
    }
}

/// The scores and the probabilities.
fn scores(logits: Tensor<2>, options: RouteOptions) -> (Tensor<2>, Tensor<2>) {
    if options.sigmoid {
        let scores = sigmoid(logits);
        (scores.clone(), scores.clone() / scores.sum_dim(1).add_scalar(TINY))
    } else {
        let scores = softmax(logits, 1);
        (scores.clone(), scores)
    }
}

pub(super) fn composed(
    logits: Tensor<2>,
    bias: Tensor<1>,
    options: RouteOptions,
) -> (Tensor<1>, Tensor<2, Int>, Tensor<1, Int>) {
    let ([tokens, experts], k, device) = (logits.dims(), options.top_k, logits.device());
    let own = logits.dtype();
    let wide = accumulator(own);
    // As the kernels do: in f16 a small sigmoid is 0, and so is `TINY`.
    let (scores, probabilities) = scores(logits.cast(wide), options);
    let chosen = top_k(scores.clone() + bias.cast(wide).unsqueeze::<2>(), k);
    let gates = scores.gather(1, chosen.clone());
    let gates = if options.normalize { gates.clone() / gates.sum_dim(1).add_scalar(TINY) } else { gates };
    let mean = probabilities.mean_dim(0).reshape([experts]);
    let all = Tensor::<1, Int>::arange(0..experts as i64, &device).unsqueeze::<2>().expand([tokens * k, experts]);
    let falls_on = chosen.clone().reshape([tokens * k, 1]).expand([tokens * k, experts]).equal(all).int();
    let load = falls_on.sum_dim(0).reshape([experts]);
    (Tensor::cat(vec![gates.reshape([tokens * k]), mean], 0).cast(own), chosen, load)
}

pub(super) fn composed_backward(
    logits: Tensor<2>,
    chosen: Tensor<2, Int>,
    of_row: Tensor<1>,
    options: RouteOptions,
) -> Tensor<2> {
    let ([tokens, experts], k, own) = (logits.dims(), options.top_k, logits.dtype());
    // As the kernels do: the number of tokens may exceed the range of f16.
    let wide = accumulator(own);
    let (of_row, (scores, probabilities)) = (of_row.cast(wide), scores(logits.cast(wide), options));
    let of_gates = of_row.clone().narrow(0, 0, tokens * k).reshape([tokens, k]);
    let of_mean = of_row.narrow(0, tokens * k, experts).div_scalar(tokens as f64).unsqueeze::<2>();
    let of_chosen = if options.normalize {
        let of_chosen = scores.clone().gather(1, chosen.clone());
        let sum = of_chosen.clone().sum_dim(1).add_scalar(TINY);
        let along = (of_gates.clone() * of_chosen / sum.clone()).sum_dim(1);
        (of_gates - along) / sum
    } else {
        of_gates
    };
    let of_scores = scores.zeros_like().scatter(1, chosen, of_chosen, IndexingUpdateOp::Add);
    let of_logits = if options.sigmoid {
        let along = (of_mean.clone() * probabilities).sum_dim(1);
        let sum = scores.clone().sum_dim(1).add_scalar(TINY);
        let of_scores = of_scores + (of_mean.expand([tokens, experts]) - along) / sum;
        of_scores * scores.clone() * (scores.neg() + 1.0)
    } else {
        let of_scores = of_scores + of_mean;
        let along = (of_scores.clone() * scores.clone()).sum_dim(1);
        scores * (of_scores - along)
    };
    of_logits.cast(own)
}
