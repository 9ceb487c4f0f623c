//! Routing: one kernel over tokens, two for the statistics over all tokens, one for the gradient.
//!
//! 1. `choose` computes a token's scores. Each of its `k` choices is the best expert after the previous choice, so
//!    nothing is sorted or masked.
//! 2. `parts_of_statistics` sums probabilities and counts choices in parts of the tokens; `statistics` adds the parts.
//! 3. `gradient_of_logits` recomputes the scores from the logits.

use super::launch::{INT, PART, empty, launch, types};
use crate::ops::options::RouteOptions;
use crate::ops::route::TINY;
use crate::ops::specs::accumulator;
use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// NaN and lower scores are replaced by this when experts are chosen.
const LEAST: f32 = f32::MIN;

/// The largest logit of a token and the sum of its scores before division; for a sigmoid, the sum of the scores.
#[cube]
fn normalizer<F: Float, A: Float>(logits: &Tensor<F>, row: usize, experts: usize, #[comptime] sigmoid: bool) -> (A, A) {
    let mut largest = A::new(0.0);
    let mut sum = A::new(0.0);
    if comptime![sigmoid] {
        for expert in 0..experts {
            sum += score::<A>(A::cast_from(logits[row + expert]), largest, sum, sigmoid);
        }
    } else {
        largest = A::cast_from(logits[row]);
        for expert in 1..experts {
            largest = max(largest, A::cast_from(logits[row + expert]));
        }
        for expert in 0..experts {
            sum += (A::cast_from(logits[row + expert]) - largest).exp();
        }
    }
    (largest, sum)
}

/// The score of a logit.
#[cube]
fn score<A: Float>(logit: A, largest: A, sum: A, #[comptime] sigmoid: bool) -> A {
    if comptime![sigmoid] {
        A::new(1.0) / (A::new(1.0) + (A::new(0.0) - logit).exp())
    } else {
        (logit - largest).exp() / sum
    }
}

/// One unit per token: probabilities, choices and gates.
#[cube(launch, address_type = "dynamic")]
fn choose<F: Float, A: Float>(
    logits: &Tensor<F>,
    bias: &Tensor<F>,
    probabilities: &mut Tensor<A>,
    gates: &mut Tensor<F>,
    chosen: &mut Tensor<i32>,
    tokens: usize,
    experts: usize,
    #[comptime] options: RouteOptions,
    #[define(F, A)] _types: [ElemType; 2],
) {
    let token = ABSOLUTE_POS;
    if token >= tokens {
        terminate!();
    }
    let k = comptime![options.top_k];
    let row = token * experts;
    let (largest, sum) = normalizer::<F, A>(logits, row, experts, options.sigmoid);
    for expert in 0..experts {
        let score = score::<A>(A::cast_from(logits[row + expert]), largest, sum, options.sigmoid);
        if comptime![options.sigmoid] {
            probabilities[row + expert] = score / (sum + A::new(TINY));
        } else {
            probabilities[row + expert] = score;
        }
    }
    // Each choice is the best after the previous one in the order (score, index), so no mask over experts is needed,
    // and equal scores are chosen in index order.
    let mut last = A::new(0.0);
    let mut last_at = 0usize;
    let mut of_chosen = A::new(0.0);
    for choice in 0..k {
        let mut best = A::new(0.0);
        let mut best_at = 0usize;
        let mut found = false;
        for expert in 0..experts {
            let score = score::<A>(A::cast_from(logits[row + expert]), largest, sum, options.sigmoid);
            let mut compared = score + A::cast_from(bias[expert]);
            // False for NaN too.
            let known = compared >= A::new(LEAST);
            if !known {
                compared = A::new(LEAST);
            }
            let left = choice == 0 || compared < last || (compared == last && expert > last_at);
            if left && (!found || compared > best) {
                best = compared;
                best_at = expert;
                found = true;
            }
        }
        last = best;
        last_at = best_at;
        chosen[token * k + choice] = i32::cast_from(best_at);
        of_chosen += score::<A>(A::cast_from(logits[row + best_at]), largest, sum, options.sigmoid);
    }
    for choice in 0..k {
        let expert = usize::cast_from(chosen[token * k + choice]);
        let mut gate = score::<A>(A::cast_from(logits[row + expert]), largest, sum, options.sigmoid);
        if comptime![options.normalize] {
            gate /= of_chosen + A::new(TINY);
        }
        gates[token * k + choice] = F::cast_from(gate);
    }
}

/// One unit per expert and part of the tokens: sums probabilities and counts choices.
#[cube(launch, address_type = "dynamic")]
fn parts_of_statistics<A: Float>(
    probabilities: &Tensor<A>,
    chosen: &Tensor<i32>,
    sums: &mut Tensor<A>,
    counts: &mut Tensor<i32>,
    tokens: usize,
    experts: usize,
    parts: usize,
    #[comptime] k: usize,
    #[comptime] part: usize,
    #[define(A)] _type: ElemType,
) {
    let index = ABSOLUTE_POS;
    if index >= parts * experts {
        terminate!();
    }
    let expert = index % experts;
    let first = index / experts * part;
    let end = min(first + part, tokens);
    let mut sum = A::new(0.0);
    for token in first..end {
        sum += probabilities[token * experts + expert];
    }
    let mut count = 0i32;
    for choice in first * k..end * k {
        if chosen[choice] == i32::cast_from(expert) {
            count += 1i32;
        }
    }
    sums[index] = sum;
    counts[index] = count;
}

/// One unit per expert: its mean probability, written after the gates, and its load.
#[cube(launch, address_type = "dynamic")]
fn statistics<F: Float, A: Float>(
    sums: &Tensor<A>,
    counts: &Tensor<i32>,
    gates_and_means: &mut Tensor<F>,
    load: &mut Tensor<i32>,
    tokens: usize,
    experts: usize,
    parts: usize,
    #[comptime] k: usize,
    #[define(F, A)] _types: [ElemType; 2],
) {
    let expert = ABSOLUTE_POS;
    if expert >= experts {
        terminate!();
    }
    let mut sum = A::new(0.0);
    let mut count = 0i32;
    for part in 0..parts {
        sum += sums[part * experts + expert];
        count += counts[part * experts + expert];
    }
    gates_and_means[tokens * k + expert] = F::cast_from(sum / A::cast_from(tokens));
    load[expert] = count;
}

/// One unit per token: the gradient of its logits, from the gradients of its gates and of the mean probabilities.
#[cube(launch, address_type = "dynamic")]
fn gradient_of_logits<F: Float, A: Float>(
    logits: &Tensor<F>,
    chosen: &Tensor<i32>,
    of_row: &Tensor<F>,
    of_logits: &mut Tensor<F>,
    tokens: usize,
    experts: usize,
    #[comptime] options: RouteOptions,
    #[define(F, A)] _types: [ElemType; 2],
) {
    let token = ABSOLUTE_POS;
    if token >= tokens {
        terminate!();
    }
    let k = comptime![options.top_k];
    let (row, choices, means) = (token * experts, token * k, tokens * k);
    let (largest, sum) = normalizer::<F, A>(logits, row, experts, options.sigmoid);
    let share = A::new(1.0) / A::cast_from(tokens);

    // Normalized gates are `score / sum`. A score's gradient is its gate's gradient minus the mean gradient along the
    // gates, divided by the sum.
    let mut of_chosen = A::new(1.0);
    let mut along_gates = A::new(0.0);
    if comptime![options.normalize] {
        of_chosen = A::new(TINY);
        for choice in 0..k {
            let expert = usize::cast_from(chosen[choices + choice]);
            let score = score::<A>(A::cast_from(logits[row + expert]), largest, sum, options.sigmoid);
            of_chosen += score;
            along_gates += A::cast_from(of_row[choices + choice]) * score;
        }
        along_gates /= of_chosen;
    }

    // The gradient's component along the scores; dividing by their sum (softmax, or sigmoid probabilities) removes it.
    let mut along = A::new(0.0);
    for expert in 0..experts {
        let score = score::<A>(A::cast_from(logits[row + expert]), largest, sum, options.sigmoid);
        along += A::cast_from(of_row[means + expert]) * share * score;
    }
    if comptime![options.sigmoid] {
        along /= sum + A::new(TINY);
    } else {
        for choice in 0..k {
            let expert = usize::cast_from(chosen[choices + choice]);
            let score = score::<A>(A::cast_from(logits[row + expert]), largest, sum, options.sigmoid);
            along += (A::cast_from(of_row[choices + choice]) - along_gates) / of_chosen * score;
        }
    }

    for expert in 0..experts {
        let score = score::<A>(A::cast_from(logits[row + expert]), largest, sum, options.sigmoid);
        let mut of_score = A::cast_from(of_row[means + expert]) * share;
        if comptime![options.sigmoid] {
            of_score = (of_score - along) / (sum + A::new(TINY));
        } else {
            of_score -= along;
        }
        for choice in 0..k {
            if chosen[choices + choice] == i32::cast_from(expert) {
                of_score += (A::cast_from(of_row[choices + choice]) - along_gates) / of_chosen;
            }
        }
        if comptime![options.sigmoid] {
            of_logits[row + expert] = F::cast_from(of_score * score * (A::new(1.0) - score));
        } else {
            of_logits[row + expert] = F::cast_from(of_score * score);
        }
    }
}

/// Gates and mean probabilities in one row, choices, and load, for logits `[t, e]`.
pub(super) fn forward(
    logits: CubeTensor,
    bias: CubeTensor,
    options: RouteOptions,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let ([tokens, experts], k) = (logits.shape().dims(), options.top_k);
    let types = types(logits.dtype);
    let sums_in = accumulator(logits.dtype);
    let probabilities = empty(&logits, [tokens, experts], sums_in);
    let row = empty(&logits, [tokens * k + experts], logits.dtype);
    let chosen = empty(&logits, [tokens, k], INT);
    launch!(
        choose, tokens, on logits, over [logits, probabilities, row],
        [logits, bias, probabilities, row, chosen],
        [tokens, experts, options, types]
    );
    let parts = tokens.div_ceil(PART);
    let (sums, counts) = (empty(&logits, [parts, experts], sums_in), empty(&logits, [parts, experts], INT));
    launch!(
        parts_of_statistics, parts * experts, on logits, over [logits, probabilities, row],
        [probabilities, chosen, sums, counts],
        [tokens, experts, parts, k, PART, types[1]]
    );
    let load = empty(&logits, [experts], INT);
    launch!(
        statistics, experts, on logits, over [logits, probabilities, row],
        [sums, counts, row, load],
        [tokens, experts, parts, k, types]
    );
    (row, chosen, load)
}

/// The gradient of the logits.
pub(super) fn backward(
    logits: CubeTensor,
    chosen: CubeTensor,
    of_row: CubeTensor,
    options: RouteOptions,
) -> CubeTensor {
    let [tokens, experts] = logits.shape().dims();
    let types = types(logits.dtype);
    let of_logits = empty(&logits, [tokens, experts], logits.dtype);
    launch!(
        gradient_of_logits, tokens, on logits, over [logits, of_row],
        [logits, chosen, of_row, of_logits],
        [tokens, experts, options, types]
    );
    of_logits
}
