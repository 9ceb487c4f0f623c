//! The idealised costs of the papers: every rank takes the same time for a microbatch.
//!
//! Costs are per rank and microbatch, so a chunk costs `1/v` of them (`v` = stages per rank), and schedules with
//! different numbers of chunks are compared on the same model. An activation is 1 byte per rank and microbatch, so
//! with this profile bytes are rank-microbatches.

use super::amount::amounts;
use super::error::ProfileError;
use super::link::{LinkCost, LinkCosts};
use super::profile::Profile;
use super::stage_cost::StageCost;
use crate::plan::Placement;

/// Costs per rank and microbatch, the same for all ranks, and the latency between ranks.
///
/// ```
/// use burn_pipeline_plan::{cost::{Profile, UniformCosts}, plan::Placement};
/// let costs = UniformCosts::new(1.0, 1.0, 1.0).with_transfer(0.1);
/// let profile = Profile::uniform(&Placement::looped(4, 2)?, costs)?;
/// assert_eq!(profile.stages()[0].forward, 0.5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct UniformCosts {
    /// Seconds of `F`.
    pub forward: f64,
    /// Seconds of `I`.
    pub input: f64,
    /// Seconds of `W`.
    pub weight: f64,
    /// Seconds of a fused `F` and `B`. If absent: `F + I + W`.
    pub overlap: Option<f64>,
    /// Latency of a message between two ranks, in seconds.
    pub transfer: f64,
}

impl UniformCosts {
    /// `F`, `I` and `W`, with transfers that take no time.
    pub fn new(forward: f64, input: f64, weight: f64) -> Self {
        Self { forward, input, weight, overlap: None, transfer: 0.0 }
    }

    /// The same costs with this latency between ranks.
    pub fn with_transfer(self, transfer: f64) -> Self {
        Self { transfer, ..self }
    }

    /// The same costs with these seconds for a fused `F` and `B`.
    pub fn with_overlap(self, overlap: f64) -> Self {
        Self { overlap: Some(overlap), ..self }
    }
}

amounts!(UniformCosts: forward, input, weight, overlap, transfer);

impl Profile {
    /// The profile of a model cut evenly into the placement's stages.
    ///
    /// # Errors
    /// Returns [`ProfileError::UniformCost`] if a cost is negative, infinite or NaN.
    pub fn uniform(placement: &Placement, costs: UniformCosts) -> Result<Self, ProfileError> {
        if let Some((field, value)) = costs.fault() {
            return Err(ProfileError::UniformCost { field, value });
        }
        let share = placement.ranks() as f64 / placement.stages() as f64;
        let stage = StageCost {
            forward: costs.forward * share,
            input: Some(costs.input * share),
            weight: Some(costs.weight * share),
            overlap: costs.overlap.map(|overlap| overlap * share),
            activation_bytes: share,
            ..StageCost::default()
        };
        let default = LinkCost { latency: costs.transfer, bandwidth: None };
        Profile::new(vec![stage; placement.stages()], LinkCosts { default, between: Vec::new() })
    }
}
