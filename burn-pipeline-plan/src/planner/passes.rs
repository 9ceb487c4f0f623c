//! What may be done to a plan before it is priced: the one list of the planner's passes.
//!
//! Where the vocabulary is spread, that pass runs before transfers are inserted.
//!
//! 1. [`PassChoice::AsBuilt`] and [`PassChoice::MergeBackward`] are tried on every candidate.
//! 2. [`PassChoice::Overlap`] runs many simulations itself. It is tried only on the best few candidates, and kept if it is
//!    faster than all others.

use super::error::DropReason;
use crate::cost::Profile;
use crate::pass::overlap::{OverlapOptions, OverlapPass, Overlapped};
use crate::plan::Plan;

/// What is done to a plan before it is priced.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum PassChoice {
    /// Transfers are inserted.
    AsBuilt,
    /// Each `I` with the `W` right behind it becomes one `B`, then transfers are inserted.
    MergeBackward,
    /// Transfers are inserted, then they and their waits are moved to where computation hides them: by
    /// [`Request::overlap_passes`](super::Request::overlap_passes), with the budgets of
    /// [`Request::overlap`](super::Request::overlap).
    Overlap,
}

impl PassChoice {
    /// All of them, in the order in which they are tried.
    pub const ALL: [PassChoice; 3] = [PassChoice::AsBuilt, PassChoice::MergeBackward, PassChoice::Overlap];

    /// Whether it is tried on every candidate.
    pub(super) fn is_cheap(self) -> bool {
        self != PassChoice::Overlap
    }

    /// The lowered plan, with the reports of the overlap passes; `None` if the result would be that of an earlier choice.
    pub(super) fn lower(
        self,
        plan: &Plan,
        profile: &Profile,
        overlap: (&[OverlapPass], &OverlapOptions),
    ) -> Result<Option<Overlapped>, DropReason> {
        let plan = plan.without_idle();
        let spread = |plan: Plan| match profile.vocabulary() {
            Some(_) => plan.with_vocabulary(profile),
            None => Ok(plan),
        };
        let lowered = match self {
            PassChoice::AsBuilt => spread(plan)?.with_transfers()?,
            PassChoice::MergeBackward => {
                let merged = plan.merge_backward();
                if merged == plan {
                    return Ok(None);
                }
                spread(merged)?.with_transfers()?
            }
            // The overlap passes know nothing of collectives of all ranks.
            PassChoice::Overlap if profile.vocabulary().is_some() => return Ok(None),
            PassChoice::Overlap => {
                let plan = plan.with_transfers()?;
                // The overlap passes refuse a plan without transfers; a single rank has none.
                if plan.is_lowered() {
                    let (passes, options) = overlap;
                    return Ok(Some(plan.overlap(profile, passes, options)?));
                }
                plan
            }
        };
        Ok(Some(Overlapped { plan: lowered, reports: Vec::new() }))
    }
}

impl std::fmt::Display for PassChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            PassChoice::AsBuilt => "as built",
            PassChoice::MergeBackward => "I and W merged",
            PassChoice::Overlap => "communication overlapped",
        })
    }
}
