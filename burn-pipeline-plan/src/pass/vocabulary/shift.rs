//! Moves forwards ahead of backwards, by the same number in every row.
//!
//! ```text
//! before   rank 1: 1F0 1B0 1F1 1B1 1F2 1B2
//! by one   rank 1: 1F0 1F1 1B0 1F2 1B1 1B2
//! ```
//!
//! The i-th forward of a row moves to the place of the forward `by` places before it. Forwards keep their order,
//! and so do all other cells.

use crate::plan::{Action, Op, Plan};

/// The shifts to try, in forwards of a rank: none, those of half a microbatch, and those of one microbatch. Plans
/// with fused or whole-stage cells are not shifted: their order has constraints beyond these.
pub(super) fn shifts(plan: &Plan) -> Vec<usize> {
    let plain = |action: &Action| match action {
        Action::Idle => true,
        Action::Single(task) => task.op().is_compute(),
        Action::Overlap(..) => false,
    };
    if !plan.has_backward() || !plan.rows().iter().flatten().all(plain) {
        return vec![0];
    }
    let chunks = plan.stages().div_ceil(plan.ranks());
    let mut shifts = vec![0, chunks.div_ceil(2), chunks];
    shifts.dedup();
    shifts
}

/// The rows with their forwards moved ahead by `by`, without idle cells.
pub(super) fn shifted(plan: &Plan, by: usize) -> Vec<Vec<Action>> {
    plan.without_idle().rows().iter().map(|row| shifted_row(row, by)).collect()
}

fn shifted_row(row: &[Action], by: usize) -> Vec<Action> {
    let is_forward = |action: &&Action| action.tasks().any(|task| task.op() == Op::Forward);
    let mut forwards = row.iter().filter(is_forward).copied();
    let mut shifted: Vec<Action> = forwards.by_ref().take(by).collect();
    for action in row {
        match is_forward(&action) {
            true => shifted.extend(forwards.next()),
            false => shifted.push(*action),
        }
    }
    shifted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwards_move_ahead_and_all_orders_stay() {
        let plan = Plan::from_csv("rank", "0F0,0I0,,0F1,0W0,0I1,0F2,0W1,0B2\n").unwrap();
        let text = |by| plan.with_rows(shifted(&plan, by)).to_csv();
        assert_eq!(text(0), "0F0,0I0,0F1,0W0,0I1,0F2,0W1,0B2\n");
        assert_eq!(text(1), "0F0,0F1,0I0,0F2,0W0,0I1,0W1,0B2\n");
        assert_eq!(text(9), "0F0,0F1,0F2,0I0,0W0,0I1,0W1,0B2\n");
        assert_eq!(shifts(&plan), [0, 1]);
    }
}
