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
//! 2. A step in which no rank runs a cell is a deadlock.

use super::error::PassError;
use crate::plan::{Action, MicrobatchTask, Op, Plan, Task, Waiting};
use std::collections::HashSet;

impl Plan {
    /// The same plan, padded with idle cells so that every rank runs its cell number `k` in step `k`.
    ///
    /// # Errors
    /// - Returns [`PassError::Lowered`] if the plan has transfers, which padded rows do not;
    /// - [`PassError::Vocabulary`] if it is vocabulary parallel;
    /// - [`PassError::Misplaced`] if a cell's stage is not in the placement;
    /// - [`PassError::Stuck`] or [`PassError::Missing`] if ranks wait for values that are never computed.
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
        let homeless = |(step, action): (usize, &Action)| {
            let stage = action.tasks().find(|task| !plan.placement().contains(task.stage()));
            stage.map(|_| (step, *action))
        };
        for (rank, row) in plan.rows().iter().enumerate() {
            if let Some((step, action)) = row.iter().enumerate().find_map(homeless) {
                return Err(PassError::Misplaced { rank, step, action, placed: None });
            }
        }
        let mut steps = Steps { plan: &plan, next: vec![0; plan.ranks()], computed: HashSet::new() };
        let mut padded = vec![Vec::new(); plan.ranks()];
        while steps.are_left() {
            steps.step(&mut padded)?;
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

    fn step(&mut self, padded: &mut [Vec<Action>]) -> Result<(), PassError> {
        let cells: Vec<(usize, Action)> = self.unfinished().collect();
        let lacks = |action: Action| action.tasks().find_map(|task| self.lacking(task));
        let lacking: Vec<Option<Task>> = cells.iter().map(|&(_, action)| lacks(action)).collect();
        if lacking.iter().all(Option::is_some) {
            let waiting = cells.iter().zip(&lacking).filter_map(|(&(rank, action), lacking)| {
                let (step, needs) = (self.next[rank], self.plan.as_written((*lacking)?));
                Some(Waiting { rank, step, action, needs, on: self.plan.placement().rank_of(needs.stage()) })
            });
            return Err(PassError::stuck(self.plan, waiting.collect()));
        }
        for ((rank, action), lacking) in cells.into_iter().zip(lacking) {
            let runs = lacking.is_none();
            padded[rank].push(if runs { action } else { Action::Idle });
            if runs {
                self.next[rank] += 1;
                self.computed.extend(action.tasks());
            }
        }
        Ok(())
    }

    /// The task of a neighbouring stage that a task needs and no earlier step has computed.
    fn lacking(&self, task: Task) -> Option<Task> {
        let needs = self.plan.input_of(task.of_microbatch()?)?;
        let split = needs.with(needs.stage(), Op::BackwardInput);
        let has = |task: MicrobatchTask| self.computed.contains(&task.into());
        (!has(needs) && (needs.op() != Op::Backward || !has(split))).then_some(needs.into())
    }
}
