//! Scales costs by the kind of operation, for what-if questions such as transfers that take twice as long.

use super::error::ProfileError;
use super::link::{LinkCost, LinkCosts, LinkOverride};
use super::profile::Profile;
use super::stage_cost::StageCost;

/// A factor for the seconds of each kind of operation; 1 changes nothing.
///
/// A fused `F` and `B` keeps its share of the sum of both. Bytes do not change.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Factors {
    /// For `F`.
    pub forward: f64,
    /// For `I`.
    pub input: f64,
    /// For `W`.
    pub weight: f64,
    /// For `B`.
    pub backward: f64,
    /// For `UNSHARD`.
    pub unshard: f64,
    /// For `REDUCE_GRAD`.
    pub reduce_grad: f64,
    /// For sends and receives.
    pub transfer: f64,
}

impl Default for Factors {
    /// 1 for all.
    fn default() -> Self {
        Self { forward: 1.0, input: 1.0, weight: 1.0, backward: 1.0, unshard: 1.0, reduce_grad: 1.0, transfer: 1.0 }
    }
}

impl Profile {
    /// The profile with the seconds of each kind of operation multiplied by a factor: to see how far a plan, or the
    /// choice of passes and the planner, depends on an estimate. Like the multipliers of PyTorch's
    /// `torch/_inductor/comms.py`, which has one for communication and one for everything else.
    ///
    /// # Errors
    /// Returns the errors of [`Profile::new`] for the scaled numbers.
    ///
    /// ```
    /// use burn_pipeline_plan::{cost::{Factors, Profile, UniformCosts}, plan::Placement};
    /// let profile = Profile::uniform(&Placement::looped(2, 1)?, UniformCosts::new(1.0, 1.0, 1.0).with_transfer(0.5))?;
    /// let slow = profile.scaled(&Factors { transfer: 3.0, weight: 0.5, ..Factors::default() })?;
    /// assert_eq!((slow.links().default.latency, slow.stages()[0].weight_backward()), (1.5, 0.5));
    /// assert_eq!((slow.stages()[0].forward, slow.stages()[0].full_backward()), (1.0, 2.0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scaled(&self, factors: &Factors) -> Result<Self, ProfileError> {
        let link = |LinkCost { latency, bandwidth }: LinkCost| {
            let bandwidth = bandwidth.filter(|_| factors.transfer != 0.0).map(|bandwidth| bandwidth / factors.transfer);
            LinkCost { latency: latency * factors.transfer, bandwidth }
        };
        let between = self.links().between.iter().map(|b| LinkOverride::new(b.from, b.to, link(b.cost()))).collect();
        let links = LinkCosts { default: link(self.links().default), between };
        let stages = self.stages().iter().map(|stage| scaled(stage, factors)).collect();
        let profile = self.with_stages(stages)?.with_links(links)?;
        let factors = [factors.forward, factors.input, factors.weight].map(|factor| move |seconds| seconds * factor);
        match self.vocabulary() {
            Some(pieces) => profile.with_vocabulary(pieces.map_seconds(factors)),
            None => Ok(profile),
        }
    }
}

fn scaled(stage: &StageCost, factors: &Factors) -> StageCost {
    let forward = stage.forward * factors.forward;
    let backward = stage.full_backward() * factors.backward;
    let both = stage.forward + stage.full_backward();
    let overlap = |overlap: f64| if both > 0.0 { overlap * (forward + backward) / both } else { overlap };
    StageCost {
        forward,
        input: Some(stage.input_backward() * factors.input),
        weight: Some(stage.weight_backward() * factors.weight),
        backward: Some(backward),
        overlap: stage.overlap.map(overlap),
        unshard: stage.unshard * factors.unshard,
        reduce_grad: stage.reduce_grad * factors.reduce_grad,
        ..*stage
    }
}
