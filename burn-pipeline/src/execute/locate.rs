//! Adds the place in the plan to an error of a run.
//!
//! Guarantees: every error of a row that began on this rank has its place, since only the end of `Executor::run`
//! adds it. An error that a peer sent has that peer's place.
//!
//! 1. Tasks record their inputs: shapes, element types and senders, until the next action begins.
//! 2. An error that names its task gets that task's inputs, and the plan's rows around it; other errors get the
//!    rows around the current action.

use super::context::{Received, RunContext};
use super::error::ExecuteError;
use super::executor::Executor;
use super::run_state::RunState;
use crate::payload::{Payload, PayloadSpec};
use burn_pipeline_plan::plan::{MicrobatchTask, StageId, Task};

/// Logs that a rank failed, and where: its task and cell, if it was in a row. Another rank's failure is not logged
/// here, since that rank logs it.
pub(crate) fn tell_failure(rank: usize, error: &ExecuteError) {
    if !error.is_echo() {
        let (task, cell) = (error.task().map(|task| task.to_string()), error.cell());
        tracing::error!(rank, task, cell, %error, "this rank failed");
    }
}

impl RunState<'_> {
    /// Records an input of a task.
    pub(super) fn note(
        &mut self,
        task: MicrobatchTask,
        what: &'static str,
        from: Option<(StageId, usize)>,
        payload: &Payload,
    ) {
        let spec = PayloadSpec::of_payload(payload);
        self.received.push(Received { task: task.into(), what, from, spec });
    }
}

impl Executor {
    /// Adds the place in the run to an error. Another rank's failure is returned unchanged: the place here is not
    /// its cause.
    pub(super) fn in_run(&self, state: &mut RunState<'_>, error: ExecuteError) -> ExecuteError {
        if error.is_echo() {
            return error;
        }
        let (row, task) = (state.plan().row(self.grid().pipeline_rank()), error.task());
        // An error that is found after the row (when a loss is read) belongs to its own action.
        let own = |task: Task| row.iter().position(|action| action.tasks().any(|other| other == task));
        let place = task.and_then(own).unwrap_or(state.position);
        let stage = task.and_then(|task| self.stages.get(&task.stage()));
        let (name, grid) = (state.plan().name(), self.grid());
        let excerpt = state.plan().excerpt(grid.pipeline_rank(), place);
        let context = RunContext {
            purpose: state.run.purpose,
            plan: match grid.replicas() {
                1 => name.to_owned(),
                _ => format!("{name} of replica {}", grid.replica()),
            },
            module: stage.map(|held| held.module_type()),
            received: std::mem::take(&mut state.received).into_iter().filter(|got| Some(got.task) == task).collect(),
            cell: place,
            rows: match grid.replicas() * self.groups().members.size() {
                1 => excerpt,
                _ => format!("The columns are pipeline ranks.\n{excerpt}"),
            },
        };
        tracing::debug!(rank = self.rank(), plan = %state.plan().grid_marked(place), "the whole plan of a failed run");
        ExecuteError::InRun { source: Box::new(error), context: Box::new(context) }
    }
}
