//! `S`, `REDUCE_S` and `T`: a rank's shard of the head and of the cross entropy, without autodiff.
//!
//! With `e_r = exp(y_r - m_r)` of the scores `y_r` of rank `r`, the whole softmax is `k_r e_r / s_r`, where the
//! rank's share `k_r = s_r exp(m_r - m) / s` of `m = max m_r` and `s = sum s_r exp(m_r - m)` is one number per row.
//! So a rank computes all matmuls with its shard before it knows the others' numbers, and its part of the gradient
//! of `x` is scaled afterwards.
//!
//! With a shard in half precision the matmuls are in half, and all else is f32: statistics, softmax and loss, and the
//! sum of the parts of the gradient, which is rounded once. What is rounded for a matmul has the factor of the loss in
//! it, so that small gradients keep their digits in f16.

use crate::payload::AnyTensor;
use crate::tensor_parallel::OwnIds;
use burn::tensor::{FloatDType, IndexingUpdateOp, Tensor};

/// What a rank stores of a microbatch from `S` to `T`.
#[derive(Debug)]
pub(crate) struct SavedScores {
    hidden: Tensor<2>,
    /// The softmax over the rank's shard alone, times `factor`.
    softmax: Tensor<2>,
    targets: OwnIds<1>,
    /// The factor of the gradient of each row's loss.
    factor: f64,
}

/// A rank's part of the gradient of the head's input, before its share is known: two tensors `[n, d]`.
#[derive(Clone, Debug)]
pub(crate) struct InputParts {
    /// The part of the softmax, times the factor of the loss, to be scaled by the rank's share.
    pub(crate) softmax: Tensor<2>,
    /// The part of the rank's own targets, without that factor.
    pub(crate) targets: Tensor<2>,
}

/// The joined statistics of all ranks.
#[derive(Debug)]
pub(crate) struct JoinedStatistics {
    /// The cross entropy of each row, in nats, `[n, 1]`.
    pub(crate) losses: Tensor<2>,
    /// The share of each rank's shard in the softmax of each row, `[n, ranks]`.
    shares: Tensor<2>,
}

impl JoinedStatistics {
    /// The share of one rank's shard, `[n, 1]`.
    pub(crate) fn share(&self, rank: usize) -> Tensor<2> {
        self.shares.clone().narrow(1, rank, 1)
    }
}

/// `S`: the statistics `[n, 3]` of the scores of `hidden` `[n, d]` with the shard `weight` `[d, V / ranks]` (their
/// maximum, the sum of exponentials, the target's score), and the tensors that training needs in addition, given the
/// factor of the gradient of each row's loss.
pub(crate) fn score(
    weight: Tensor<2>,
    hidden: Tensor<2>,
    targets: OwnIds<1>,
    factor: Option<f64>,
) -> (Tensor<2>, Option<(SavedScores, InputParts)>) {
    let own = FloatDType::from(weight.dtype());
    let hidden = hidden.cast(own);
    let scores = widened(hidden.clone().matmul(weight.clone()));
    let largest = scores.clone().max_dim(1);
    let of_target = targets.keep(scores.clone().gather(1, targets.places().unsqueeze_dim(1)));
    let exponentials = (scores - largest.clone()).exp();
    let sum = exponentials.clone().sum_dim(1);
    let statistics = Tensor::cat(vec![largest, sum.clone(), of_target], 1);
    let Some(factor) = factor else { return (statistics, None) };
    let softmax = exponentials * sum.recip().mul_scalar(factor);
    let parts = InputParts {
        softmax: softmax.clone().cast(own).matmul(weight.clone().transpose()),
        targets: targets.keep(weight.select(1, targets.places()).transpose()),
    };
    (statistics, Some((SavedScores { hidden, softmax, targets, factor }, parts)))
}

/// Joins the statistics of all ranks, at least one, in rank order.
pub(crate) fn join(statistics: &[Tensor<2>]) -> JoinedStatistics {
    let of_ranks = |number: usize| {
        let columns = statistics.iter().map(|of_rank| of_rank.clone().narrow(1, number, 1));
        Tensor::cat(columns.collect(), 1)
    };
    let (largest, sums, of_target) = (of_ranks(0), of_ranks(1), of_ranks(2));
    let of_all = largest.clone().max_dim(1);
    let sums = sums * (largest - of_all.clone()).exp();
    let sum = sums.clone().sum_dim(1);
    JoinedStatistics { losses: sum.clone().log() + of_all - of_target.sum_dim(1), shares: sums / sum }
}

/// The gradient of the head's input: the parts of all ranks, added in rank order. `None` without a rank. `factor` is
/// that of [`score`].
pub(crate) fn input_gradient(joined: &JoinedStatistics, parts: Vec<InputParts>, factor: f64) -> Option<Tensor<2>> {
    let of_rank = |(rank, part): (usize, InputParts)| {
        widened(part.softmax) * joined.share(rank) - widened(part.targets).mul_scalar(factor)
    };
    parts.into_iter().enumerate().map(of_rank).reduce(|sum, part| sum + part)
}

/// The same numbers in the type for sums.
fn widened(tensor: Tensor<2>) -> Tensor<2> {
    let wide = AnyTensor::widest(tensor.dtype());
    tensor.cast(FloatDType::from(wide))
}

impl SavedScores {
    /// `T`: the gradient of the shard, from this rank's share.
    pub(crate) fn weight_gradient(self, share: Tensor<2>) -> Tensor<2> {
        let of_targets = self.targets.keep(share.full_like(-self.factor));
        let places = self.targets.places().unsqueeze_dim(1);
        let of_scores = (self.softmax * share).scatter(1, places, of_targets, IndexingUpdateOp::Add);
        let own = FloatDType::from(self.hidden.dtype());
        self.hidden.transpose().matmul(of_scores.cast(own))
    }

    pub(crate) fn bytes(&self) -> usize {
        let of = |tensor: &Tensor<2>| tensor.shape().num_elements() * tensor.dtype().size();
        of(&self.hidden) + of(&self.softmax)
    }
}
