//! What is known of a model cut into stages: seconds and bytes of each stage, latency and bandwidth of links.
//!
//! Guarantees: a [`Profile`] holds at least one stage, and no number in it is negative or not a number.
//!
//! 1. [`StageCost`] is one stage: what its actions take and hold. `B` defaults to `I + W`, and where only `B`
//!    was measured, `I` and `W` share it.
//! 2. Where values go past the next stage, the edges say from where to where.
//! 3. [`LinkCosts`] is the network.

use super::error::ProfileError;
use super::json::ProfileForm;
use super::link::LinkCosts;
use crate::plan::skips::checked;
use crate::plan::{SkipEdge, Task};
use serde::{Deserialize, Serialize};

/// Seconds and bytes of one stage, for one microbatch where that makes a difference.
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
    /// Seconds of `I`; without it, what `B` leaves beside `W`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<f64>,
    /// Seconds of `W`; without it, what `B` leaves beside `I`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    /// Seconds of `B`; without it, `I + W`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backward: Option<f64>,
    /// Seconds of this stage's `F` fused with a `B` on the same rank; without it, both one after the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap: Option<f64>,
    /// Seconds of `UNSHARD`.
    #[serde(default)]
    pub unshard: f64,
    /// Seconds of `REDUCE_GRAD`.
    #[serde(default)]
    pub reduce_grad: f64,
    /// Bytes that `F` leaves behind for the backward, held until `W` (or `B`) ends.
    #[serde(default)]
    pub activation_bytes: f64,
    /// The part of `activation_bytes` and `recomputed_bytes` that `I` already gives back; negative where `I` leaves more
    /// for `W` (gradients of hidden states) than it gives back.
    #[serde(default)]
    pub freed_at_input_bytes: f64,
    /// Bytes held beside them while `F` runs, and again from the start of `I` (or `B`) until the same end: a stage that
    /// recomputes its forward makes them anew, see [`StageCost::recomputing`].
    #[serde(default, skip_serializing_if = "is_zero")]
    pub recomputed_bytes: f64,
    /// Bytes of parameters that stay on the rank during the whole step (the shard, where they are sharded).
    #[serde(default)]
    pub weight_bytes: f64,
    /// Bytes held beside them between `UNSHARD` and `RESHARD`.
    #[serde(default)]
    pub unsharded_bytes: f64,
    /// Bytes of the gradients of the weights: held from the first `W` (or `B`) on, and once more while each later one runs,
    /// whose gradients are added to them. 0 where they are not to be counted.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub gradient_bytes: f64,
    /// What is left of `gradient_bytes` after `REDUCE_GRAD` (the piece, where they are sharded); without it, all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reduced_gradient_bytes: Option<f64>,
    /// Bytes of optimizer state that stay on the rank (of the piece, where it is sharded). 0 where it is not to be counted.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub optimizer_bytes: f64,
    /// Bytes of the stage's output, which are also those of the gradient that comes back for it.
    #[serde(default)]
    pub message_bytes: f64,
    /// Bytes of each value that the stage hands to one past the next ([`SkipEdge`](crate::plan::SkipEdge)), which
    /// are also those of the gradient that comes back for it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skip_bytes: f64,
}

impl StageCost {
    /// Seconds of the whole backward.
    pub fn full_backward(&self) -> f64 {
        self.backward.unwrap_or_else(|| self.input.unwrap_or(0.0) + self.weight.unwrap_or(0.0))
    }

    /// Seconds of the backward for the input.
    pub fn input_backward(&self) -> f64 {
        self.input.unwrap_or_else(|| self.share(self.weight))
    }

    /// Seconds of the backward for the weights.
    pub fn weight_backward(&self) -> f64 {
        self.weight.unwrap_or_else(|| self.share(self.input))
    }

    /// The same stage keeping only its input of `input_bytes` and running its forward again at the start of the
    /// backward: `I` and `B` take `F` longer, and what the forward leaves behind is there only from then on. A stage
    /// that recomputes already stays as it is.
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
        Self {
            input: Some(self.input_backward() + self.forward),
            weight: Some(self.weight_backward()),
            backward: self.backward.map(|backward| backward + self.forward),
            overlap: self.overlap.map(|overlap| overlap + self.forward),
            activation_bytes: kept,
            recomputed_bytes: self.activation_bytes - kept,
            ..self
        }
    }

    /// The same stage with its parameters sharded over this many replicas: each keeps a piece, and holds the whole beside
    /// it from `UNSHARD` to `RESHARD`; of its gradients it keeps a piece after `REDUCE_GRAD`, and of the optimizer's state
    /// always. What is sent then takes time that is not known here.
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
            unsharded_bytes: self.weight_bytes,
            reduced_gradient_bytes: Some(self.gradient_bytes / replicas),
            optimizer_bytes: self.optimizer_bytes / replicas,
            ..self
        }
    }

    /// What a part of the backward takes when it was not measured: the rest, or half of the whole.
    fn share(&self, other: Option<f64>) -> f64 {
        let whole = self.full_backward();
        other.map_or(whole / 2.0, |other| (whole - other).max(0.0))
    }

    /// Every number with its name, to be checked.
    fn numbers(&self) -> [(&'static str, f64); 16] {
        [
            ("forward", self.forward),
            ("input", self.input.unwrap_or(0.0)),
            ("weight", self.weight.unwrap_or(0.0)),
            ("backward", self.backward.unwrap_or(0.0)),
            ("overlap", self.overlap.unwrap_or(0.0)),
            ("unshard", self.unshard),
            ("reduce_grad", self.reduce_grad),
            ("activation_bytes", self.activation_bytes),
            ("recomputed_bytes", self.recomputed_bytes),
            ("weight_bytes", self.weight_bytes),
            ("unsharded_bytes", self.unsharded_bytes),
            ("gradient_bytes", self.gradient_bytes),
            ("reduced_gradient_bytes", self.reduced_gradient_bytes.unwrap_or(0.0)),
            ("optimizer_bytes", self.optimizer_bytes),
            ("message_bytes", self.message_bytes),
            ("skip_bytes", self.skip_bytes),
        ]
    }
}

/// Costs of every stage and link; what the runtime writes and the simulator reads.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(try_from = "ProfileForm", into = "ProfileForm")]
pub struct Profile {
    stages: Vec<StageCost>,
    skips: Vec<SkipEdge>,
    links: LinkCosts,
}

fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

pub(super) fn is_amount(value: f64) -> bool {
    value.is_finite() && value >= 0.0
}

impl Profile {
    /// A profile of one entry a stage (in model order, of one replica) and the links between ranks.
    ///
    /// # Errors
    /// If there is no stage, or a number is negative, infinite or not a number.
    pub fn new(stages: Vec<StageCost>, links: LinkCosts) -> Result<Self, ProfileError> {
        if stages.is_empty() {
            return Err(ProfileError::NoStage);
        }
        for (stage, cost) in stages.iter().enumerate() {
            if let Some((field, value)) = cost.numbers().into_iter().find(|&(_, value)| !is_amount(value)) {
                return Err(ProfileError::Stage { stage, field, value: value.to_string() });
            }
            let freed = cost.freed_at_input_bytes;
            if !freed.is_finite() || freed > cost.activation_bytes + cost.recomputed_bytes {
                return Err(ProfileError::FreesTooMuch { stage });
            }
        }
        links.check()?;
        Ok(Self { stages, skips: Vec::new(), links })
    }

    /// The same for a model with these edges past the next stage; what crosses them is the `skip_bytes` of the stages
    /// that they leave.
    ///
    /// # Errors
    /// [`ProfileError::Skip`] if an edge is none.
    pub fn with_skips(self, skips: Vec<SkipEdge>) -> Result<Self, ProfileError> {
        let skips = checked(skips, self.stages.len(), Task::MAX_SKIP)?;
        Ok(Self { skips, ..self })
    }

    /// The same model at other costs.
    ///
    /// # Errors
    /// As [`Profile::new`], and [`ProfileError::Skip`] if an edge leads to a stage that is not there any more.
    pub fn with_stages(&self, stages: Vec<StageCost>) -> Result<Self, ProfileError> {
        Self::new(stages, self.links.clone())?.with_skips(self.skips.clone())
    }

    /// The edges past the next stage, sorted.
    pub fn skips(&self) -> &[SkipEdge] {
        &self.skips
    }

    /// Costs of the stages, in model order.
    pub fn stages(&self) -> &[StageCost] {
        &self.stages
    }

    /// The links between ranks.
    pub fn links(&self) -> &LinkCosts {
        &self.links
    }

    /// The same stages over other links.
    ///
    /// # Errors
    /// As [`Profile::new`].
    pub fn with_links(self, links: LinkCosts) -> Result<Self, ProfileError> {
        Self::new(self.stages, links)?.with_skips(self.skips)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::LinkCost;

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

    #[test]
    fn numbers_that_are_no_amounts_are_refused_by_name() {
        let with = |cost| Profile::new(vec![StageCost::default(), cost], LinkCosts::default()).unwrap_err();
        let error = with(StageCost { forward: -1.0, ..StageCost::default() });
        assert_eq!(error, ProfileError::Stage { stage: 1, field: "forward", value: "-1".into() });
        let error = with(StageCost { weight: Some(f64::NAN), ..StageCost::default() });
        assert_eq!(error, ProfileError::Stage { stage: 1, field: "weight", value: "NaN".into() });
        let error = with(StageCost { freed_at_input_bytes: 1.0, ..StageCost::default() });
        assert_eq!(error, ProfileError::FreesTooMuch { stage: 1 });
        assert_eq!(Profile::new(vec![], LinkCosts::default()), Err(ProfileError::NoStage));
        let links = LinkCosts { default: LinkCost { latency: 0.0, bandwidth: Some(0.0) }, between: vec![] };
        let error = Profile::new(vec![StageCost::default()], links).unwrap_err();
        assert!(matches!(error, ProfileError::LinkCost { field: "bandwidth", .. }), "{error}");
    }
}
