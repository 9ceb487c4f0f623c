//! Inserts `UNSHARD` before a stage is used and `RESHARD` when it is not needed soon, which bounds the number of
//! stages gathered on a rank.
//!
//! ```text
//! before (2 active)   rank 0: 0F0 2F0 4F0 4B0 2B0 0B0
//! after               rank 0: 0UNSHARD 2UNSHARD 0F0 0RESHARD 4UNSHARD 2F0 4F0 4B0 4RESHARD 0UNSHARD 2B0 2RESHARD 0B0
//! ```
//!
//! Guarantees: before each compute cell, the rank holds exactly the next `max_active` different stages that it will
//! compute, including the cell's own. A stage is gathered when it enters this window and released when it leaves.
//! Releases come before gathers. Gathers are in the order of first use; releases in the order in which the previous
//! cell used the stages (only a fused cell can release two). Nothing is released at the end of a row, since the
//! runtime frees everything after the step. The cells are those of PyTorch 2.7's `_add_unshard_reshard`, except
//! that PyTorch releases two stages in the order of a Python set.
//!
//! 1. The window is a run of compute tasks, from the current cell up to `max_active` different stages.
//! 2. A cell that has run leaves the window, which lowers its stage's count of uses, possibly to zero.
//! 3. The end of the window advances while there is room. Both ends only move forward, so time is linear.
//!
//! Idle cells are dropped. In a lowered plan, transfers stay in place; run this pass before lowering to get
//! PyTorch's order.

use super::error::PassError;
use crate::plan::edges::Edges;
use crate::plan::{Action, Op, Plan, StageId, Task};

impl Plan {
    /// Inserts `UNSHARD` and `RESHARD` so that at most `max_active` stages are gathered on a rank at a time.
    ///
    /// Idempotent: a plan with either of them is returned unchanged.
    ///
    /// # Errors
    /// Returns [`PassError::TooFewActive`] if a cell needs more stages than the bound allows (a fused cell needs
    /// two, any other cell one), and [`PassError::Check`] if a cell's stage is not in the placement.
    ///
    /// ```
    /// use burn_pipeline_plan::plan::Plan;
    /// let plan = Plan::from_csv("mine", "0F0,1F0,1B0,0B0\n")?;
    /// let sharded = plan.with_unshard(1)?;
    /// assert_eq!(sharded.to_csv(), "0UNSHARD,0F0,0RESHARD,1UNSHARD,1F0,1B0,1RESHARD,0UNSHARD,0B0\n");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_unshard(&self, max_active: usize) -> Result<Plan, PassError> {
        if self.any_task(|task| matches!(task.op(), Op::Unshard | Op::Reshard)) {
            return Ok(self.clone());
        }
        let edges = Edges::new(self);
        let uses = vec![0; edges.slots().len()];
        let mut window = Window { plan: self, edges: &edges, max_active, uses, stages: 0, tasks: 0 };
        let rows = (0..self.ranks()).map(|rank| window.row(rank, self.row(rank))).collect::<Result<_, _>>()?;
        Ok(self.with_rows(rows))
    }
}

struct Window<'a> {
    plan: &'a Plan,
    edges: &'a Edges,
    max_active: usize,
    /// The number of uses of each stage within the window.
    uses: Vec<usize>,
    /// The number of stages with a use within the window.
    stages: usize,
    /// The number of tasks within the window.
    tasks: usize,
}

impl Window<'_> {
    fn row(&mut self, rank: usize, row: &[Action]) -> Result<Vec<Action>, PassError> {
        let mut sharded = Vec::with_capacity(row.len() + 16);
        let compute = |task: &Task| task.op().is_compute();
        let mut ahead = row.iter().flat_map(|action| action.tasks()).filter(compute);
        // Stages that left the window after the last compute cell, and stages that enter it before this one.
        let mut gone: Vec<StageId> = Vec::new();
        let mut come: Vec<StageId> = Vec::new();
        for (step, &action) in row.iter().enumerate().filter(|(_, action)| !action.is_idle()) {
            let own = action.tasks().filter(compute).count();
            if own == 0 {
                sharded.push(action);
                continue;
            }
            self.refuse_narrow(rank, step, action)?;
            while self.stages < self.max_active || self.tasks < own {
                let Some(task) = ahead.next() else { break };
                let slot = self.edges.find(task.stage()).ok_or_else(|| PassError::refusal(self.plan))?;
                if self.enter(slot) {
                    // A stage that has just left and comes back is not released in between.
                    match gone.iter().position(|&stage| stage == task.stage()) {
                        Some(back) => drop(gone.remove(back)),
                        None => come.push(task.stage()),
                    }
                }
            }
            sharded.extend(gone.drain(..).map(|stage| Action::from(Task::whole_stage(stage, Op::Reshard))));
            sharded.extend(come.drain(..).map(|stage| Action::from(Task::whole_stage(stage, Op::Unshard))));
            sharded.push(action);
            for stage in action.tasks().filter(compute).map(Task::stage) {
                if self.edges.find(stage).is_some_and(|slot| self.leave(slot)) {
                    gone.push(stage);
                }
            }
        }
        self.stages = 0;
        Ok(sharded)
    }

    fn refuse_narrow(&self, rank: usize, step: usize, action: Action) -> Result<(), PassError> {
        let needs = match action {
            Action::Overlap(first, second) if first.stage() != second.stage() => 2,
            _ => 1,
        };
        let max_active = self.max_active;
        if needs > max_active {
            return Err(PassError::TooFewActive { rank, step, action, needs, max_active });
        }
        Ok(())
    }

    /// Adds a use of a stage to the window. Returns true if it is the only one there.
    #[inline]
    fn enter(&mut self, slot: usize) -> bool {
        self.tasks += 1;
        self.uses[slot] += 1;
        let new = self.uses[slot] == 1;
        self.stages += usize::from(new);
        new
    }

    /// Removes a use of a stage from the window. Returns true if it was the last one there.
    #[inline]
    fn leave(&mut self, slot: usize) -> bool {
        self.tasks -= 1;
        self.uses[slot] -= 1;
        let last = self.uses[slot] == 0;
        self.stages -= usize::from(last);
        last
    }
}
