//! The one place where the planner's passes are listed: what may be done to a plan before it is priced.
//!
//! A pass that moves communication is added here: a variant, its name, and what it does to the lowered plan.

use crate::cost::Profile;
use crate::pass::{PassError, insert_transfers, merge_backward, strip_idle};
use crate::plan::{Op, Plan};

/// What is done to a family's plan.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum PassChoice {
    /// Transfers are inserted.
    AsBuilt,
    /// An `I` and the `W` right behind it become one `B`, then transfers are inserted.
    MergeBackward,
}

impl PassChoice {
    /// All of them, in the order in which they are tried.
    pub const ALL: [PassChoice; 2] = [PassChoice::AsBuilt, PassChoice::MergeBackward];

    /// The lowered plan, or none where the pass changes nothing that an earlier choice has not tried.
    pub(super) fn lower(self, plan: &Plan, _profile: &Profile) -> Option<Result<Plan, PassError>> {
        let plan = strip_idle(plan);
        match self {
            PassChoice::AsBuilt => Some(insert_transfers(&plan)),
            PassChoice::MergeBackward => {
                let merged = plan.any_task(|task| task.op() == Op::BackwardInput).then(|| merge_backward(&plan))?;
                (merged != plan).then(|| insert_transfers(&merged))
            }
        }
    }
}

impl std::fmt::Display for PassChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            PassChoice::AsBuilt => "as built",
            PassChoice::MergeBackward => "I and W merged",
        })
    }
}
