//! Walking a rank's row: which actions are run one by one, and which together.
//!
//! 1. Actions run in the plan's order, the tasks of a fused action one after the other.
//! 2. A fused action is interleaved where that was chosen and both stages were captured; see
//!    [`FusedActions`](super::FusedActions).
//! 3. `W`s of one stage that stand side by side are run at once where that was chosen; the timeline gives each an
//!    even share of the time.
//! 4. After every action, what is held is counted, and reductions that are under way go on as far as they can.

use super::ExecuteError;
use super::interleave::Fused;
use super::interpreter::Executor;
use super::run_state::RunState;
use crate::link::Activity;
use crate::plan::{Action, MicrobatchTask, Op, Plan, Task};
use crate::trace::Event;

impl Executor {
    pub(super) fn run_row(&mut self, state: &mut RunState<'_>) -> Result<(), ExecuteError> {
        let plan = state.run.plan.plan();
        let mut left = plan.row(self.grid().pipeline_rank());
        while let [action, rest @ ..] = left {
            let weights = if self.options.merge_weights { weights_of_one_stage(left) } else { Vec::new() };
            if weights.len() > 1 {
                self.run_weights(state, &weights)?;
                left = &left[weights.len()..];
            } else {
                self.run_action(state, plan, action)?;
                left = rest;
            }
        }
        Ok(())
    }

    fn run_action(&mut self, state: &mut RunState<'_>, plan: &Plan, action: &Action) -> Result<(), ExecuteError> {
        if let Some(fused) = Fused::of(action).filter(|_| state.run.train && self.interleaves()) {
            return self.run_interleaved(state, plan, fused);
        }
        for task in action.tasks() {
            self.start(state, task)?;
            let _span = tracing::trace_span!("task", rank = self.link.rank(), task = %task).entered();
            self.run_task(state, plan, task)?;
            self.count_held(state);
            state.note(self.link.rank(), Action::Single(task), state.started);
            if self.is_under_way(task) {
                state.keep_open(task);
            }
            self.move_on(state)?;
        }
        Ok(())
    }

    /// Says that a task begins, once the parameters that it computes with are here.
    pub(super) fn start(&mut self, state: &mut RunState<'_>, task: Task) -> Result<(), ExecuteError> {
        if task.op().is_compute() {
            self.await_parameters(state, task)?;
        }
        self.link.announce(Activity::Task(task));
        state.started = state.run.began.elapsed();
        Ok(())
    }

    pub(super) fn count_held(&self, state: &mut RunState<'_>) {
        let held: usize = self.stages.values().map(|stage| stage.held()).sum();
        state.outcome.peak_held = state.outcome.peak_held.max(held);
        let bytes = self.stages.values().map(|stage| stage.held_bytes()).sum::<Option<usize>>();
        state.outcome.peak_held_bytes = state.outcome.peak_held_bytes.zip(bytes).map(|(peak, bytes)| peak.max(bytes));
    }

    /// `W`s of one stage at once.
    fn run_weights(&mut self, state: &mut RunState<'_>, tasks: &[MicrobatchTask]) -> Result<(), ExecuteError> {
        let first = tasks[0];
        self.start(state, first.into())?;
        let _span =
            tracing::trace_span!("weights", rank = self.link.rank(), task = %first, tasks = tasks.len()).entered();
        let indices: Vec<usize> = tasks.iter().map(|task| state.run.index(task.stage(), task.microbatch())).collect();
        self.guarded(first, |stage| stage.backward_weights(&indices))?;
        self.count_held(state);
        let (start, end) = (state.started.as_secs_f64(), state.run.began.elapsed().as_secs_f64());
        let share = (end - start) / tasks.len() as f64;
        for (at, &task) in tasks.iter().enumerate() {
            let start = start + share * at as f64;
            let action = task.into();
            state.outcome.events.push(Event { rank: self.link.rank(), action, start, end: start + share });
        }
        self.move_on(state)?;
        Ok(())
    }
}

/// The `W`s of one stage that a row starts with.
fn weights_of_one_stage(row: &[Action]) -> Vec<MicrobatchTask> {
    let task = |action: &Action| match action {
        Action::Single(task) if task.op() == Op::BackwardWeight => task.of_microbatch(),
        _ => None,
    };
    let Some(first) = row.first().and_then(task) else { return Vec::new() };
    row.iter().map_while(task).take_while(|task| task.stage() == first.stage()).collect()
}
