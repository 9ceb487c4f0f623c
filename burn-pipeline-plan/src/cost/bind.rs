//! A profile bound to a placement: the seconds and bytes of the placement's actions and links.
//!
//! Guarantees: a bound profile has costs for every stage and link of the placement.

use super::error::ProfileError;
use super::link::LinkCost;
use super::profile::Profile;
use super::stage_cost::StageCost;
use super::vocabulary::VocabularyCost;
use crate::plan::{Action, Op, Placement, Plan, StageId, Task};

/// The costs of one placement's actions and links, made and validated by [`Profile::costs`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Costs<'a> {
    profile: &'a Profile,
    placement: &'a Placement,
}

impl Profile {
    /// Binds the profile to a placement.
    ///
    /// # Errors
    /// Returns [`ProfileError::Stages`] if the numbers of stages differ, and [`ProfileError::NoSuchRank`] if a link
    /// names a rank that the placement does not have.
    pub(crate) fn costs<'a>(&'a self, placement: &'a Placement) -> Result<Costs<'a>, ProfileError> {
        let (profile, plan) = (self.stages().len(), placement.stages());
        if profile != plan {
            return Err(ProfileError::Stages { profile, plan });
        }
        let ranks = placement.ranks();
        if let Some(b) = self.links().between.iter().find(|b| b.from >= ranks || b.to >= ranks) {
            return Err(ProfileError::NoSuchRank { from: b.from, to: b.to, ranks });
        }
        Ok(Costs { profile: self, placement })
    }
}

impl<'a> Costs<'a> {
    pub(crate) fn placement(&self) -> &'a Placement {
        self.placement
    }

    /// The costs of a stage, the same on both routes of a bidirectional placement.
    pub(crate) fn stage(&self, stage: StageId) -> &'a StageCost {
        &self.profile.stages()[stage.index()]
    }

    /// The costs of a rank's pieces of the vocabulary; zero if the plan is not vocabulary parallel.
    pub(crate) fn pieces(&self) -> VocabularyCost {
        self.profile.vocabulary().copied().unwrap_or_default()
    }

    /// The seconds of a collective of all ranks.
    pub(crate) fn collective_seconds(&self, op: Op) -> f64 {
        self.pieces().collective_seconds(op, self.profile.links(), self.placement.ranks())
    }

    /// Refuses a vocabulary-parallel plan if the profile has no vocabulary costs.
    ///
    /// # Errors
    /// Returns [`ProfileError::NoVocabulary`].
    pub(crate) fn check_vocabulary(&self, plan: &Plan) -> Result<(), ProfileError> {
        let costed = self.profile.vocabulary().is_some();
        if costed || !plan.has_vocabulary() { Ok(()) } else { Err(ProfileError::NoVocabulary) }
    }

    /// The seconds that a task occupies its rank. Zero for sends, receives (see [`Costs::crossing_seconds`]) and
    /// waits.
    pub(crate) fn task_seconds(&self, task: Task) -> f64 {
        let stage = self.stage(task.stage());
        match task.op() {
            Op::Forward => stage.forward,
            Op::BackwardInput => stage.input_backward(),
            Op::BackwardWeight => stage.weight_backward(),
            Op::Backward => stage.full_backward(),
            Op::Unshard => stage.unshard,
            Op::ReduceGrad => stage.reduce_grad,
            op if op.is_piece() => self.pieces().piece_seconds(op, true),
            _ => 0.0,
        }
    }

    /// The seconds of a fused action with its own cost. Both its parts end together.
    ///
    /// `F` fused with `B` takes the `overlap` of the forward's stage. `F` fused with `I` takes that minus the
    /// seconds of the backward's `W`; `F` fused with `W`, minus the seconds of its `I`. Each takes at least as long as
    /// the longer part. `None` without an `overlap`, and for an action that is not fused: its tasks then run one after
    /// the other.
    pub(crate) fn fused_seconds(&self, action: Action) -> Option<f64> {
        let Action::Overlap(forward, backward) = action else { return None };
        let overlap = self.stage(forward.stage()).overlap?;
        let other = self.stage(backward.stage());
        let absent = match backward.op() {
            Op::BackwardInput => other.weight_backward(),
            Op::BackwardWeight => other.input_backward(),
            _ => 0.0,
        };
        let rest = overlap - absent;
        Some(rest.max(self.task_seconds(forward.into())).max(self.task_seconds(backward.into())))
    }

    /// The seconds that an action occupies its rank.
    pub(crate) fn action_seconds(&self, action: Action) -> f64 {
        let serial = || action.tasks().map(|task| self.task_seconds(task)).sum();
        self.fused_seconds(action).unwrap_or_else(serial)
    }

    /// The cost of the link from one rank to another.
    pub(crate) fn link(&self, from: usize, to: usize) -> LinkCost {
        self.profile.links().link(from, to)
    }

    /// The seconds from the end of an action to the arrival of its output, or of the gradient for an output, on
    /// another rank. Zero on the same rank. `output_of` is the stage with this output.
    pub(crate) fn crossing_seconds(&self, from: usize, to: usize, output_of: StageId) -> f64 {
        self.crossing(from, to, self.stage(output_of).message_bytes)
    }

    /// As [`Costs::crossing_seconds`], for a value of stage `value_of` that goes over a skip edge.
    pub(crate) fn skip_crossing_seconds(&self, from: usize, to: usize, value_of: StageId) -> f64 {
        self.crossing(from, to, self.stage(value_of).skip_bytes)
    }

    fn crossing(&self, from: usize, to: usize, bytes: f64) -> f64 {
        if from == to { 0.0 } else { self.link(from, to).seconds(bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{LinkCosts, LinkOverride, UniformCosts};

    #[test]
    fn a_profile_of_another_cut_is_refused() {
        let profile = Profile::uniform(&Placement::looped(2, 1).unwrap(), UniformCosts::new(1.0, 1.0, 1.0)).unwrap();
        let error = profile.costs(&Placement::looped(2, 2).unwrap()).unwrap_err();
        assert_eq!(error, ProfileError::Stages { profile: 2, plan: 4 });
        let between = vec![LinkOverride { from: 0, to: 2, latency: 0.0, bandwidth: None }];
        let profile = profile.with_links(LinkCosts { between, ..LinkCosts::default() }).unwrap();
        let error = profile.costs(&Placement::looped(2, 1).unwrap()).unwrap_err();
        assert_eq!(error, ProfileError::NoSuchRank { from: 0, to: 2, ranks: 2 });
    }

    #[test]
    fn a_fused_action_has_a_cost_of_its_own() {
        let placement = Placement::v(2).unwrap();
        let cost = |costs, action: &str| {
            let profile = Profile::uniform(&placement, costs).unwrap();
            profile.costs(&placement).unwrap().action_seconds(action.parse().unwrap())
        };
        let serial = UniformCosts::new(2.0, 2.0, 2.0);
        assert_eq!(cost(serial, "(0F1;3B0)OVERLAP_F_B"), 3.0);
        assert_eq!(cost(serial.with_overlap(5.0), "(0F1;3B0)OVERLAP_F_B"), 2.5);
        assert_eq!(cost(serial.with_overlap(5.0), "(0F1;3I0)OVERLAP_F_B"), 1.5);
        assert_eq!(cost(serial.with_overlap(3.0), "(0F1;3I0)OVERLAP_F_B"), 1.0);
        assert_eq!(cost(serial.with_overlap(1.0), "(0F1;3B0)OVERLAP_F_B"), 2.0);
    }
}
