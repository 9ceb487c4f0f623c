//! Small batches, for schedules whose rule needs a minimum of microbatches: they build a larger plan and drop the
//! surplus.
//!
//! Dropping keeps a plan legal. An operation waits only for operations of its own microbatch, so removing whole
//! microbatches adds no deadlock.

use crate::plan::{Action, Task};

/// Removes every task whose microbatch is not below its route's count. The other task of a fused pair stays.
pub(super) fn drop_beyond(mut row: Vec<Action>, microbatches: &[usize]) -> Vec<Action> {
    let keeps = |task: &Task| {
        let count = microbatches.get(task.stage().route()).copied().unwrap_or(0);
        task.microbatch().is_none_or(|m| m < count)
    };
    row.retain_mut(|action| {
        *action = match *action {
            Action::Overlap(first, second) => match (keeps(&first.into()), keeps(&second.into())) {
                (true, true) => return true,
                (true, false) => first.into(),
                (false, true) => second.into(),
                (false, false) => return false,
            },
            other => other,
        };
        action.tasks().all(|task| keeps(&task))
    });
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{MicrobatchTask, Op, StageId};

    #[test]
    fn tasks_beyond_the_count_go_and_a_half_of_a_fused_pair_stays() {
        let back = MicrobatchTask::new(StageId::in_route(1, 3), Op::Backward, 0);
        let fused = Action::Overlap(MicrobatchTask::new(0, Op::Forward, 1), back);
        let row = vec![Action::forward(0, 0), fused, Action::forward(0, 2)];
        let kept = |microbatches: [usize; 2]| drop_beyond(row.clone(), &microbatches);
        assert_eq!(kept([2, 1]), [Action::forward(0, 0), fused]);
        assert_eq!(kept([1, 1]), [Action::forward(0, 0), back.into()]);
        assert_eq!(kept([1, 0]), [Action::forward(0, 0)]);
    }
}
