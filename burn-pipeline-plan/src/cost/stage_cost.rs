//! The costs of one stage: the seconds of its actions, and the bytes that they hold.
//!
//! `I` may leave more bytes than it frees (gradients of hidden states for `W`), so `freed_at_input_bytes` may be
//! negative.

use super::amount::{amounts, is_default};
use crate::plan::Op;
use serde::{Deserialize, Serialize};

/// Seconds and bytes of one stage, for one microbatch where they depend on it.
///
/// ```
/// use burn_pipeline_plan::cost::StageCost;
/// let stage = StageCost { forward: 1.0, input: Some(1.2), weight: Some(0.8), ..StageCost::default() };
/// assert_eq!(stage.full_backward(), 2.0);
/// ```
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageCost {
    /// Seconds of `F`.
    pub forward: f64,
    /// Seconds of `I`. If absent: `B` minus `W`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<f64>,
    /// Seconds of `W`. If absent: `B` minus `I`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    /// Seconds of `B`. If absent: `I + W`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backward: Option<f64>,
    /// Seconds of this stage's `F` fused with a `B` on the same rank. If absent, the two run one after the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap: Option<f64>,
    /// Seconds of `UNSHARD`.
    #[serde(default)]
    pub unshard: f64,
    /// Seconds of `REDUCE_GRAD`.
    #[serde(default)]
    pub reduce_grad: f64,
    /// Bytes of activations that `F` saves for the backward, held until `W` (or `B`) ends.
    #[serde(default)]
    pub activation_bytes: f64,
    /// The part of `activation_bytes + recomputed_bytes` that `I` frees. Negative if `I` saves more for `W`
    /// (gradients of hidden states) than it frees.
    #[serde(default)]
    pub freed_at_input_bytes: f64,
    /// Bytes of activations that the stage recomputes in its backward: held while `F` runs, and again from the
    /// start of `I` (or `B`) until `W` (or `B`) ends. See [`StageCost::recomputing`].
    #[serde(default, skip_serializing_if = "is_default")]
    pub recomputed_bytes: f64,
    /// Bytes of parameters that stay on the rank during the whole step (of the shard, if they are sharded): of
    /// masters and of their rounded copies, in half precision.
    #[serde(default)]
    pub weight_bytes: f64,
    /// Bytes of gathered parameters (of copies, in half precision), held between `UNSHARD` and `RESHARD`. If 0,
    /// [`StageCost::sharded`] takes `weight_bytes`.
    #[serde(default)]
    pub unsharded_bytes: f64,
    /// Bytes of the gradients of the weights: held from the first `W` (or `B`) on, and a second time while each
    /// later one runs, whose own gradients are added to the sum. 0 to leave them out.
    #[serde(default, skip_serializing_if = "is_default")]
    pub gradient_bytes: f64,
    /// Bytes of `gradient_bytes` that remain after `REDUCE_GRAD` (the shard, if they are sharded). If absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reduced_gradient_bytes: Option<f64>,
    /// Bytes other than the parameters that stay on the rank between steps: optimizer state (of the shard, if it is
    /// sharded), constants of captured programs, memory kept for reuse. 0 to leave them out.
    #[serde(default, skip_serializing_if = "is_default")]
    pub optimizer_bytes: f64,
    /// Bytes of the stage's output, and of the gradient that comes back for it.
    #[serde(default)]
    pub message_bytes: f64,
    /// Bytes of each value that the stage sends over a skip edge ([`SkipEdge`](crate::plan::SkipEdge)), and of the
    /// gradient that comes back for it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub skip_bytes: f64,
    /// The peak bytes while `F` runs on a microbatch: its input and output, its temporaries, and what it saves,
    /// without parameters. If absent: `activation_bytes + recomputed_bytes`, plus received messages until it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward_peak_bytes: Option<f64>,
    /// The peak bytes while `I` runs on a microbatch: what `F` saved, the gradients of the stage's output and
    /// input, its temporaries, and what it saves. If absent: what is held before, plus received messages until it
    /// ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_peak_bytes: Option<f64>,
    /// The peak bytes while `W` runs on a microbatch: what `I` saved, its temporaries, and its gradients of the
    /// weights before they are added to the sum. If absent: what is held before, plus `gradient_bytes` from the
    /// second `W` on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_peak_bytes: Option<f64>,
    /// The peak bytes while `B` runs on a microbatch: as for `I` and `W` together. If absent: as for both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backward_peak_bytes: Option<f64>,
}

impl StageCost {
    /// The seconds of the whole backward.
    pub fn full_backward(&self) -> f64 {
        self.backward.unwrap_or_else(|| self.input.unwrap_or(0.0) + self.weight.unwrap_or(0.0))
    }

    /// The seconds of the backward for the input.
    pub fn input_backward(&self) -> f64 {
        self.input.unwrap_or_else(|| self.share(self.weight))
    }

    /// The seconds of the backward for the weights.
    pub fn weight_backward(&self) -> f64 {
        self.weight.unwrap_or_else(|| self.share(self.input))
    }

    /// The same stage with recomputation: it saves only its input of `input_bytes` and runs its forward again at
    /// the start of the backward. `I` and `B` take longer by the seconds of `F`, and the other activations are held
    /// only from then on. If `I` takes no time, as in the first stage that trains, `W` takes longer instead. A stage
    /// that already recomputes is returned unchanged.
    ///
    /// ```
    /// use burn_pipeline_plan::cost::StageCost;
    /// let stage = StageCost { forward: 1.0, input: Some(1.0), activation_bytes: 9.0, ..StageCost::default() };
    /// let again = stage.recomputing(2.0);
    /// assert_eq!((again.activation_bytes, again.recomputed_bytes, again.input_backward()), (2.0, 7.0, 2.0));
    /// ```
    pub fn recomputing(self, input_bytes: f64) -> Self {
        if self.recomputed_bytes > 0.0 {
            return self;
        }
        let kept = input_bytes.min(self.activation_bytes);
        let recomputed = self.activation_bytes - kept;
        let in_weight = self.input == Some(0.0);
        let (before_input, before_weight) = if in_weight { (0.0, self.forward) } else { (self.forward, 0.0) };
        // The second forward may need more than the backward after it.
        let again = |peak: Option<f64>| peak.map(|peak| peak.max(self.forward_peak_bytes.unwrap_or(0.0)));
        Self {
            input: Some(self.input_backward() + before_input),
            weight: Some(self.weight_backward() + before_weight),
            backward: self.backward.map(|backward| backward + self.forward),
            overlap: self.overlap.map(|overlap| overlap + self.forward),
            activation_bytes: kept,
            recomputed_bytes: recomputed,
            // Rounding does not make the freed bytes more than those held.
            freed_at_input_bytes: self.freed_at_input_bytes.min(kept + recomputed),
            input_peak_bytes: again(self.input_peak_bytes),
            backward_peak_bytes: again(self.backward_peak_bytes),
            ..self
        }
    }

    /// The same stage with its parameters sharded over this many replicas. Each replica holds a shard of the
    /// parameters and of the optimizer's state, all parameters from `UNSHARD` to `RESHARD`, and a shard of the
    /// gradients after `REDUCE_GRAD`. The seconds of `UNSHARD` and `REDUCE_GRAD` do not change: they depend on the
    /// network.
    ///
    /// ```
    /// use burn_pipeline_plan::cost::StageCost;
    /// let stage = StageCost { weight_bytes: 8.0, gradient_bytes: 8.0, optimizer_bytes: 16.0, ..StageCost::default() };
    /// let stage = stage.sharded(4);
    /// assert_eq!((stage.weight_bytes, stage.unsharded_bytes, stage.optimizer_bytes), (2.0, 8.0, 4.0));
    /// assert_eq!((stage.gradient_bytes, stage.reduced_gradient_bytes), (8.0, Some(2.0)));
    /// ```
    pub fn sharded(self, replicas: usize) -> Self {
        let replicas = replicas.max(1) as f64;
        Self {
            weight_bytes: self.weight_bytes / replicas,
            unsharded_bytes: if self.unsharded_bytes > 0.0 { self.unsharded_bytes } else { self.weight_bytes },
            reduced_gradient_bytes: Some(self.gradient_bytes / replicas),
            optimizer_bytes: self.optimizer_bytes / replicas,
            ..self
        }
    }

    /// The same stage before the first one that trains: without a backward, and with nothing held for one.
    pub(super) fn frozen(self) -> Self {
        Self {
            input: Some(0.0),
            weight: Some(0.0),
            backward: None,
            activation_bytes: 0.0,
            freed_at_input_bytes: 0.0,
            recomputed_bytes: 0.0,
            gradient_bytes: 0.0,
            reduced_gradient_bytes: None,
            optimizer_bytes: 0.0,
            ..self
        }
    }

    /// The same stage as the first one that trains: `W` is its whole backward. A stage that recomputes does it there.
    pub(super) fn first_trained(self) -> Self {
        let input = self.input_backward();
        let again = if self.recomputed_bytes > 0.0 && input > 0.0 { self.forward } else { 0.0 };
        let weight = (self.full_backward() - input).max(0.0) + again;
        Self { input: Some(0.0), weight: Some(weight), backward: None, freed_at_input_bytes: 0.0, ..self }
    }

    /// The seconds of an unmeasured part of the backward: `B` minus the other part, or half of `B`.
    fn share(&self, other: Option<f64>) -> f64 {
        let whole = self.full_backward();
        other.map_or(whole / 2.0, |other| (whole - other).max(0.0))
    }

    /// The peak bytes while this operation runs on a microbatch, if known.
    pub(crate) fn peak_bytes(&self, op: Op) -> Option<f64> {
        match op {
            Op::Forward => self.forward_peak_bytes,
            Op::BackwardInput => self.input_peak_bytes,
            Op::BackwardWeight => self.weight_peak_bytes,
            Op::Backward => self.backward_peak_bytes,
            _ => None,
        }
    }
}

amounts!(
    StageCost: forward, input, weight, backward, overlap, unshard, reduce_grad, activation_bytes, recomputed_bytes,
    weight_bytes, unsharded_bytes, gradient_bytes, reduced_gradient_bytes, optimizer_bytes, message_bytes, skip_bytes,
    forward_peak_bytes, input_peak_bytes, weight_peak_bytes, backward_peak_bytes; of any sign: freed_at_input_bytes
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_the_backward_complete_each_other() {
        let cost = |input, weight, backward| StageCost { input, weight, backward, ..StageCost::default() };
        assert_eq!(cost(Some(1.0), Some(2.0), None).full_backward(), 3.0);
        assert_eq!(cost(Some(1.0), Some(2.0), Some(2.5)).full_backward(), 2.5);
        assert_eq!(cost(Some(1.0), None, Some(2.5)).weight_backward(), 1.5);
        assert_eq!(cost(None, Some(2.0), Some(2.5)).input_backward(), 0.5);
        assert_eq!(cost(None, None, Some(3.0)).input_backward(), 1.5);
        assert_eq!(cost(None, None, Some(3.0)).weight_backward(), 1.5);
    }
}
