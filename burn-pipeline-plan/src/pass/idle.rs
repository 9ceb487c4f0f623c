//! Pads rows with idle cells, so that every rank runs the cell of a step in that step.
//!
//! ```text
//! before   rank 0: 0F0 0F1 0B0 0B1
//!          rank 1: 1F0 1B0 1F1 1B1
//! after    rank 0: 0F0 0F1  .  0B0  .  0B1
//!          rank 1:  .  1F0 1B0 1F1 1B1
//! ```
//!
//! Guarantees: a value is used in a later step than the one that computes it. Each cell is in the first step that
//! allows this, so no row can be shorter. Cells keep their order. Idempotent.
//!
//! PyTorch's schedules without transfers run in lockstep: a rank posts the receive for the cell that its
//! neighbour's row has in the same step, so a CSV file for `PipelineScheduleMulti` needs such rows. Follows
//! `_add_bubbles_to_actions` of PyTorch 2.7, which ignores `I`. This library's executor needs no padding, and
//! drawings have their own clock.
//!
//! 1. In each step every rank's next cell runs if its inputs were computed in an earlier step; otherwise the rank
//!    idles.
//! 2. In a step in which no rank can run a cell, the plan is refused, with the fault that `check` finds.

use super::error::PassError;
use crate::plan::{Action, MicrobatchTask, Op, Plan, Task};
use std::collections::HashSet;

impl Plan {
    /// The same plan, padded with idle cells so that every rank runs its cell number `k` in step `k`.
    ///
    /// # Errors
    /// - Returns [`PassError::Lowered`] if the plan has transfers, which padded rows do not;
    /// - [`PassError::Vocabulary`] if it is vocabulary parallel;
    /// - [`PassError::Check`] if a cell's stage is not in the placement, or ranks wait for values that are never
    ///   computed.
    ///
    /// ```
    /// use burn_pipeline_plan::plan::Plan;
    /// let plan = Plan::from_csv("1F1B", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")?;
    /// assert_eq!(plan.with_idle()?.to_csv(), "0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1\n");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_idle(&self) -> Result<Plan, PassError> {
        if self.is_lowered() {
            return Err(PassError::Lowered);
        }
        if self.has_vocabulary() {
            return Err(PassError::Vocabulary { reason: "padded rows have no collectives" });
        }
        let plan = self.without_idle();
        let mut steps = Steps { plan: &plan, next: vec![0; plan.ranks()], computed: HashSet::new() };
        let mut padded = vec![Vec::new(); plan.ranks()];
        while steps.are_left() {
            if !steps.step(&mut padded) {
                return Err(PassError::refusal(self));
            }
        }
        Ok(plan.with_rows(padded))
    }
}

struct Steps<'a> {
    plan: &'a Plan,
    /// The number of cells of each row that have run.
    next: Vec<usize>,
    /// The tasks computed in earlier steps.
    computed: HashSet<Task>,
}

impl Steps<'_> {
    fn are_left(&self) -> bool {
        self.unfinished().next().is_some()
    }

    /// The next cell of each rank that has not finished.
    fn unfinished(&self) -> impl Iterator<Item = (usize, Action)> {
        let next = self.next.iter().enumerate();
        next.filter_map(|(rank, &step)| Some((rank, *self.plan.row(rank).get(step)?)))
    }

    /// Runs one step. Returns false if no rank can run its next cell.
    fn step(&mut self, padded: &mut [Vec<Action>]) -> bool {
        let cells: Vec<(usize, Action)> = self.unfinished().collect();
        let ready = |&(_, action): &(usize, Action)| action.tasks().all(|task| self.is_ready(task));
        let runs: Vec<bool> = cells.iter().map(ready).collect();
        for (&(rank, action), &runs) in cells.iter().zip(&runs) {
            padded[rank].push(if runs { action } else { Action::Idle });
            if runs {
                self.next[rank] += 1;
                self.computed.extend(action.tasks());
            }
        }
        runs.contains(&true)
    }

    /// Returns true if a task's stage exists, and an earlier step has computed what it needs of a neighbouring stage.
    fn is_ready(&self, task: Task) -> bool {
        let has = |task: MicrobatchTask| self.computed.contains(&task.into());
        let computed = |needs: MicrobatchTask| {
            has(needs) || needs.op() == Op::Backward && has(needs.with(needs.stage(), Op::BackwardInput))
        };
        let needs = task.of_microbatch().and_then(|task| self.plan.input_of(task));
        self.plan.placement().contains(task.stage()) && needs.is_none_or(computed)
    }
}
