//! The one place where the planner's passes are listed: what may be done to a plan before it is priced.
//!
//! 1. [`PassChoice::AsBuilt`] and [`PassChoice::MergeBackward`] are tried on every candidate.
//! 2. [`PassChoice::Overlap`] simulates many times itself, so it is tried on the best few alone, and kept where it gains.

use super::error::DropReason;
use crate::cost::Profile;
use crate::pass::overlap::{OverlapOptions, OverlapPass, overlap};
use crate::pass::{insert_transfers, merge_backward, strip_idle};
use crate::plan::{Op, Plan};
use crate::simulate::SimulateOptions;

/// What is done to a family's plan.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum PassChoice {
    /// Transfers are inserted.
    AsBuilt,
    /// An `I` and the `W` right behind it become one `B`, then transfers are inserted.
    MergeBackward,
    /// Transfers are inserted, and they and their waits moved to where computation hides them.
    Overlap,
}

impl PassChoice {
    /// All of them, in the order in which they are tried.
    pub const ALL: [PassChoice; 3] = [PassChoice::AsBuilt, PassChoice::MergeBackward, PassChoice::Overlap];

    /// Is it tried on every candidate?
    pub(super) fn is_cheap(self) -> bool {
        self != PassChoice::Overlap
    }

    /// The lowered plan, or none where the pass changes nothing that an earlier choice has not tried.
    pub(super) fn lower(
        self,
        plan: &Plan,
        profile: &Profile,
        simulate: SimulateOptions,
    ) -> Option<Result<Plan, DropReason>> {
        let plan = strip_idle(plan);
        let lowered = |plan: &Plan| insert_transfers(plan).map_err(DropReason::from);
        match self {
            PassChoice::AsBuilt => Some(lowered(&plan)),
            PassChoice::MergeBackward => {
                let merged = plan.any_task(|task| task.op() == Op::BackwardInput).then(|| merge_backward(&plan))?;
                (merged != plan).then(|| lowered(&merged))
            }
            PassChoice::Overlap => {
                let options = OverlapOptions { simulate, ..OverlapOptions::default() };
                let moved = lowered(&plan).and_then(|plan| {
                    // A rank alone sends nothing.
                    if !plan.is_lowered() {
                        return Ok(plan);
                    }
                    Ok(overlap(&plan, profile, &OverlapPass::USUAL, &options).map_err(Box::new)?.plan)
                });
                Some(moved)
            }
        }
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
