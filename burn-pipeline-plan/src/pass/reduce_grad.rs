//! Inserts the reduction of a stage's gradients over data-parallel replicas, after its last weight gradient.
//!
//! ```text
//! before   rank 0: 0F0 1F0 1B0 0F1 1F1 1B1 0B0 0B1
//! after    rank 0: 0F0 1F0 1B0 0F1 1F1 1B1 1REDUCE_GRAD 0B0 0B1 0REDUCE_GRAD
//! ```
//!
//! Guarantees: each stage that computes a weight gradient gets one `REDUCE_GRAD`, as soon as all its gradients are
//! computed, so that it overlaps with other stages of the rank. In a lowered plan it goes after the sends that
//! follow the cell, since peers wait for those. Idle cells are dropped. Idempotent. Follows `_add_reduce_grad` of
//! PyTorch 2.15, without its separate wait, which [`Plan::with_waits`] adds.

use crate::plan::{Action, Op, Plan, Task};

impl Plan {
    /// Inserts one `REDUCE_GRAD` per stage, after its last `W` or `B`.
    ///
    /// Idempotent: a plan with any `REDUCE_GRAD` is returned unchanged.
    ///
    /// ```
    /// use burn_pipeline_plan::plan::Plan;
    /// let plan = Plan::from_csv("mine", "0F0,0F1,0B0,0B1\n")?;
    /// assert_eq!(plan.with_reduce_grad().to_csv(), "0F0,0F1,0B0,0B1,0REDUCE_GRAD\n");
    /// # Ok::<(), burn_pipeline_plan::plan::PlanError>(())
    /// ```
    pub fn with_reduce_grad(&self) -> Plan {
        if self.any_task(|task| task.op() == Op::ReduceGrad) {
            return self.clone();
        }
        let slots = self.placement().slots();
        // The number of weight gradients still to come, by stage; zero again after each row.
        let mut left = vec![0usize; slots];
        self.with_rows(self.rows().iter().map(|row| reduce_row(self, row, &mut left)).collect())
    }
}

fn reduce_row(plan: &Plan, row: &[Action], left: &mut [usize]) -> Vec<Action> {
    let slot = |task: Task| {
        let known = task.op().gives_weight_gradient() && plan.placement().contains(task.stage());
        known.then(|| plan.placement().slot(task.stage()))
    };
    row.iter().flat_map(|action| action.tasks()).filter_map(slot).for_each(|slot| left[slot] += 1);
    let mut reduced = Vec::with_capacity(row.len() + 4);
    let mut due: Vec<Action> = Vec::new();
    for &action in row.iter().filter(|action| !action.is_idle()) {
        if !is_send(action) {
            reduced.append(&mut due);
        }
        reduced.push(action);
        for task in action.tasks() {
            let Some(slot) = slot(task) else { continue };
            left[slot] -= 1;
            if left[slot] == 0 {
                due.push(Task::whole_stage(task.stage(), Op::ReduceGrad).into());
            }
        }
    }
    reduced.append(&mut due);
    reduced
}

fn is_send(action: Action) -> bool {
    matches!(action, Action::Single(task) if task.op().is_send())
}
