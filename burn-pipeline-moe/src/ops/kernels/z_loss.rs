//! The z-loss: one kernel over tokens, two small ones for the mean, one for the gradient.

use super::launch::{PART, empty, launch, types};
use crate::ops::specs::accumulator;
use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// One unit per token: its log-sum-exp.
#[cube(launch, address_type = "dynamic")]
fn log_sums_of_tokens<F: Float, A: Float>(
    logits: &Tensor<F>,
    log_sums: &mut Tensor<A>,
    tokens: usize,
    experts: usize,
    #[define(F, A)] _types: [ElemType; 2],
) {
    let token = ABSOLUTE_POS;
    if token >= tokens {
        terminate!();
    }
    let row = token * experts;
    let mut largest = A::cast_from(logits[row]);
    for expert in 1..experts {
        largest = max(largest, A::cast_from(logits[row + expert]));
    }
    let mut sum = A::new(0.0);
    for expert in 0..experts {
        sum += (A::cast_from(logits[row + expert]) - largest).exp();
    }
    log_sums[token] = sum.ln() + largest;
}

/// One unit per part of the tokens: the sum of squares.
#[cube(launch, address_type = "dynamic")]
fn squares_of_parts<A: Float>(
    log_sums: &Tensor<A>,
    squares: &mut Tensor<A>,
    tokens: usize,
    parts: usize,
    #[comptime] part: usize,
    #[define(A)] _type: ElemType,
) {
    let index = ABSOLUTE_POS;
    if index >= parts {
        terminate!();
    }
    let mut sum = A::new(0.0);
    for token in index * part..min((index + 1) * part, tokens) {
        sum += log_sums[token] * log_sums[token];
    }
    squares[index] = sum;
}

/// One unit: the mean.
#[cube(launch, address_type = "dynamic")]
fn mean_of_parts<F: Float, A: Float>(
    squares: &Tensor<A>,
    loss: &mut Tensor<F>,
    tokens: usize,
    parts: usize,
    #[define(F, A)] _types: [ElemType; 2],
) {
    if ABSOLUTE_POS > 0 {
        terminate!();
    }
    let mut sum = A::new(0.0);
    for index in 0..parts {
        sum += squares[index];
    }
    loss[0] = F::cast_from(sum / A::cast_from(tokens));
}

/// One unit per logit: its gradient.
#[cube(launch, address_type = "dynamic")]
fn gradient_of_logits<F: Float, A: Float>(
    logits: &Tensor<F>,
    log_sums: &Tensor<A>,
    of_loss: &Tensor<F>,
    of_logits: &mut Tensor<F>,
    tokens: usize,
    experts: usize,
    #[define(F, A)] _types: [ElemType; 2],
) {
    let index = ABSOLUTE_POS;
    if index >= tokens * experts {
        terminate!();
    }
    let log_sum = log_sums[index / experts];
    let of_log_sum = A::cast_from(of_loss[0]) * A::new(2.0) * log_sum / A::cast_from(tokens);
    of_logits[index] = F::cast_from(of_log_sum * (A::cast_from(logits[index]) - log_sum).exp());
}

/// The loss and the log-sum-exps of logits `[t, e]`.
pub(super) fn forward(logits: CubeTensor) -> (CubeTensor, CubeTensor) {
    let [tokens, experts] = logits.shape().dims();
    let types = types(logits.dtype);
    let log_sums = empty(&logits, [tokens], accumulator(logits.dtype));
    launch!(
        log_sums_of_tokens, tokens, on logits, over [logits],
        [logits, log_sums],
        [tokens, experts, types]
    );
    let parts = tokens.div_ceil(PART);
    let squares = empty(&logits, [parts], log_sums.dtype);
    launch!(
        squares_of_parts, parts, on logits, over [log_sums],
        [log_sums, squares],
        [tokens, parts, PART, types[1]]
    );
    let loss = empty(&logits, [1], logits.dtype);
    launch!(
        mean_of_parts, 1, on squares, over [squares],
        [squares, loss],
        [tokens, parts, types]
    );
    (loss, log_sums)
}

/// The gradient of the logits.
pub(super) fn backward(logits: CubeTensor, log_sums: CubeTensor, of_loss: CubeTensor) -> CubeTensor {
    let [tokens, experts] = logits.shape().dims();
    let types = types(logits.dtype);
    let of_logits = empty(&logits, [tokens, experts], logits.dtype);
    launch!(
        gradient_of_logits, tokens * experts, on logits, over [logits],
        [logits, log_sums, of_loss, of_logits],
        [tokens, experts, types]
    );
    of_logits
}
