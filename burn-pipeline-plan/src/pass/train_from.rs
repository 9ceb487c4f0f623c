//! Removes the backwards of stages before the first one that trains.
//!
//! ```text
//! before        rank 0: 0F0 0F1 0B0 0B1
//!               rank 1: 1F0 1F1 1I0 1W0 1I1 1W1
//!               rank 2: 2F0 2B0 2F1 2B1
//! from stage 1  rank 0: 0F0 0F1
//!               rank 1: 1F0 1F1 1W0 1W1
//!               rank 2: 2F0 2B0 2F1 2B1
//! ```
//!
//! Guarantees: everything else stays in order, so a plan that passes [`check`](Plan::check) still does, and under the
//! same costs no simulated action ends later (without transfers, or if they do not block). Idempotent. Idle cells are
//! dropped, since rows no longer line up.
//!
//! 1. `B`, `I` and `W` of earlier stages go, and so do `REDUCE_GRAD` and the transfers of gradients that nobody uses.
//! 2. No gradient leaves the first stage that trains: its `B` becomes `W`, and its `I` goes.
//! 3. A fused cell keeps what is left of it.
//! 4. An `UNSHARD` that served only a removed backward goes, with its wait and its `RESHARD`.

use super::error::PassError;
use crate::plan::{Action, MicrobatchTask, Op, Plan, Task};

impl Plan {
    /// The same plan for a model that trains from this stage on, on both routes of a bidirectional placement. Stages
    /// before it have no backward, and it has `W` alone. A plan without backwards, and any plan if the stage is 0, is
    /// returned unchanged. Run it before the other passes, so that they see what is left.
    ///
    /// ```
    /// use burn_pipeline_plan::plan::Plan;
    /// let plan = Plan::from_csv("mine", "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n2F0,2B0,2F1,2B1\n")?;
    /// assert_eq!(plan.train_from(1)?.to_csv(), "0F0,0F1\n1F0,1F1,1W0,1W1\n2F0,2B0,2F1,2B1\n");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`PassError::TrainsFrom`] if the plan does not have the stage, or no longer has the backwards of all
    /// stages from there on, and [`PassError::EmbeddingGradient`] if its embedding is vocabulary parallel.
    pub fn train_from(&self, first: usize) -> Result<Plan, PassError> {
        if first == self.first_trained() || !self.has_backward() {
            return Ok(self.clone());
        }
        if first < self.first_trained() || first >= self.stages() {
            let (from, stages) = (self.first_trained(), self.stages());
            return Err(PassError::TrainsFrom { first, from, stages });
        }
        if self.any_task(|task| task.op() == Op::EmbeddingForward) {
            return Err(PassError::EmbeddingGradient { first });
        }
        let row = |row: &Vec<Action>| {
            let left: Vec<Action> = row.iter().filter_map(|&action| left(action, first)).collect();
            used(&left)
        };
        Ok(self.with_rows(self.rows().iter().map(row).collect()).with_first_trained(first))
    }
}

/// What is left of a cell.
fn left(action: Action, first: usize) -> Option<Action> {
    match action {
        Action::Idle => None,
        Action::Single(task) => task_left(task, first).map(Action::Single),
        Action::Overlap(forward, backward) => match task_left(backward.into(), first).and_then(Task::of_microbatch) {
            Some(backward) => Some(Action::Overlap(forward, backward)),
            None => Some(forward.into()),
        },
    }
}

fn task_left(task: Task, first: usize) -> Option<Task> {
    let (stage, peer) = (task.stage().index(), task.skip_peer().map(|peer| peer.index()));
    let alone = |task: MicrobatchTask| Task::from(task.with(task.stage(), Op::BackwardWeight));
    match task.op().awaits().unwrap_or(task.op()) {
        Op::BackwardInput if stage <= first => None,
        Op::Backward if stage == first => task.of_microbatch().map(alone),
        // To the stage before, or to the earlier end of a skip edge.
        Op::SendBackward if peer.unwrap_or(stage.saturating_sub(1)) < first => None,
        Op::Backward | Op::BackwardWeight | Op::ReceiveBackward | Op::ReduceGrad if stage < first => None,
        _ => Some(task),
    }
}

/// The row without gatherings of parameters that no computation uses.
fn used(row: &[Action]) -> Vec<Action> {
    let is = |action: &Action, op: Op, of: Task| *action == Action::Single(Task::whole_stage(of.stage(), op));
    let mut gone = vec![false; row.len()];
    for (start, action) in row.iter().enumerate() {
        let Action::Single(task) = *action else { continue };
        if task.op() != Op::Unshard {
            continue;
        }
        let rest = &row[start..];
        let end = rest.iter().position(|action| is(action, Op::Reshard, task)).unwrap_or(rest.len());
        let uses = |action: &Action| action.tasks().any(|t| t.stage() == task.stage() && t.op().is_compute());
        if !rest[..end].iter().any(uses) {
            let belongs =
                |action: &Action| [Op::Unshard, Op::WaitUnshard, Op::Reshard].iter().any(|&op| is(action, op, task));
            let cells = rest.iter().take(end + 1).enumerate().filter(|(_, action)| belongs(action));
            cells.for_each(|(at, _)| gone[start + at] = true);
        }
    }
    row.iter().zip(gone).filter(|(_, gone)| !gone).map(|(action, _)| *action).collect()
}
