//! Merges a backward for the input and the backward for the weights right after it into one whole backward.
//!
//! ```text
//! before   rank 0: 0F0     0I0     0W0 0I1 0F1 0W1
//! after    rank 0: 0F0 0B0 0I1 0F1 0W1
//! ```
//!
//! Guarantees: `I` and `W` of one stage and microbatch become `B` if only idle cells are between them; everything
//! else stays in order. Idle cells are dropped, since rows no longer line up. Idempotent. Follows PyTorch's
//! `_merge_bw`, which fails on a row with a single `I`; here such a row is kept.

use crate::plan::{Action, Op, Plan};

impl Plan {
    /// Merges `I` then `W` of the same stage and microbatch into `B`, and drops idle cells.
    ///
    /// Run it before [`Plan::with_transfers`], which puts a send between `I` and its `W`.
    ///
    /// ```
    /// use burn_pipeline_plan::plan::Plan;
    /// let plan = Plan::from_csv("mine", "0F0,0I0,,0W0\n")?;
    /// assert_eq!(plan.merge_backward().to_csv(), "0F0,0B0\n");
    /// # Ok::<(), burn_pipeline_plan::plan::PlanError>(())
    /// ```
    pub fn merge_backward(&self) -> Plan {
        self.with_rows(self.rows().iter().map(|row| merge_row(row)).collect())
    }
}

fn merge_row(row: &[Action]) -> Vec<Action> {
    let mut merged: Vec<Action> = Vec::with_capacity(row.len());
    for &action in row.iter().filter(|action| !action.is_idle()) {
        match merged.last_mut().and_then(|last| Some((whole(*last, action)?, last))) {
            Some((backward, last)) => *last = backward,
            None => merged.push(action),
        }
    }
    merged
}

/// The whole backward of two cells, if they are `I` and `W` of one stage and microbatch.
fn whole(first: Action, second: Action) -> Option<Action> {
    let (Action::Single(input), Action::Single(weight)) = (first, second) else { return None };
    let split = input.op() == Op::BackwardInput && weight.op() == Op::BackwardWeight;
    let same = input.stage() == weight.stage() && input.microbatch() == weight.microbatch();
    (split && same).then_some(input.of_microbatch()?.with(input.stage(), Op::Backward).into())
}
