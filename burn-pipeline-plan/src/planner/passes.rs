//! The passes that the planner may run on a plan before pricing it.
//!
//! 1. [`PassChoice::AsBuilt`] and [`PassChoice::MergeBackward`] are tried on every candidate.
//! 2. [`PassChoice::Overlap`] runs many simulations. It is tried only on the best few candidates, and kept if the
//!    result is faster than all others.
//!
//! If the first stages do not train, their backwards are removed first ([`Plan::train_from`]). If the vocabulary is
//! parallel, its pass runs before transfers are inserted.

use super::error::DropReason;
use crate::cost::Profile;
use crate::named::named;
use crate::pass::overlap::{OverlapOptions, OverlapPass, Overlapped};
use crate::plan::Plan;

named! {
    /// The passes that run on a plan before it is priced, in the order in which they are tried.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
    pub enum PassChoice, name {
        /// Inserts transfers.
        AsBuilt => "as built",
        /// Merges each `I` and the `W` right behind it into one `B`, then inserts transfers.
        MergeBackward => "I and W merged",
        /// Inserts transfers, then moves them and their waits to where computation hides them. Runs
        /// [`Request::overlap_passes`](super::Request::overlap_passes) with the budgets of
        /// [`Request::overlap`](super::Request::overlap).
        Overlap => "communication overlapped",
    }
}

impl PassChoice {
    /// Returns true if it is tried on every candidate.
    pub(super) fn is_cheap(self) -> bool {
        self != PassChoice::Overlap
    }

    /// The lowered plan, with the reports of the overlap passes; `None` if an earlier choice gives the same plan.
    pub(super) fn lower(
        self,
        plan: &Plan,
        profile: &Profile,
        overlap: (&[OverlapPass], &OverlapOptions),
    ) -> Result<Option<Overlapped>, DropReason> {
        let plan = plan.without_idle().train_from(profile.first_trained())?;
        let vocabulary = |plan: Plan| match profile.vocabulary() {
            Some(_) => plan.with_vocabulary(profile),
            None => Ok(plan),
        };
        let lowered = match self {
            PassChoice::AsBuilt => vocabulary(plan)?.with_transfers()?,
            PassChoice::MergeBackward => {
                let merged = plan.merge_backward();
                if merged == plan {
                    return Ok(None);
                }
                vocabulary(merged)?.with_transfers()?
            }
            // The overlap passes do not support collectives of all ranks.
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
