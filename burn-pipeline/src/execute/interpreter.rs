//! The interpreter of one rank's row; see the numbered steps in `mod.rs`.
//!
//! 1. The tasks of a fused action run one after the other, unless they are interleaved (`interleave.rs`).
//! 2. Adjacent `W`s of one stage run in one call if the options allow it. The timeline gives each an even share of
//!    the time.
//! 3. After every action, held microbatches and bytes are counted, and started reductions advance as far as they
//!    can.

use super::context::Purpose;
use super::error::ExecuteError;
use super::executor::Executor;
use super::interleave::Fused;
use super::outcome::RankOutcome;
use super::run::Run;
use super::run_state::RunState;
use crate::link::{Activity, Link};
use burn_pipeline_plan::plan::{Action, MicrobatchTask, Op, Plan, Task};
use burn_pipeline_plan::trace::Event;

impl Executor {
    /// Runs this rank's row of the plan. An error is sent to all other ranks, and everything stored for the run is
    /// dropped.
    ///
    /// # Errors
    /// [`ExecuteError`] names rank, stage, microbatch and operation of the failure, here or on another rank.
    pub(crate) fn run(&mut self, run: Run<'_>) -> Result<RankOutcome, ExecuteError> {
        let mut state = RunState::new(run);
        let result = self.run_all(&mut state);
        self.link.set_activity(Activity::Idle);
        if let Err(error) = result {
            let error = self.in_run(&mut state, self.blame_device(error));
            self.fail(&error);
            return Err(error);
        }
        Ok(state.outcome)
    }

    fn run_all(&mut self, state: &mut RunState<'_>) -> Result<(), ExecuteError> {
        self.gather_unplanned(&state.run)?;
        if !state.run.share.empty {
            self.run_row(state)?;
            self.groups.members.end_row().map_err(|source| self.link_error(None, source))?;
        }
        self.end_exchanges(state)?;
        self.refuse_unwritten_row(state)?;
        self.gather_losses(state)?;
        match state.run.share.empty {
            true => Ok(()),
            false => self.groups.members.take_row_ends().map_err(|source| self.link_error(None, source)),
        }
    }

    /// Reports an error of this rank to the others, and drops what the run holds.
    pub(crate) fn fail(&mut self, error: &ExecuteError) {
        // All ranks already know a peer's failure, and it must stay the first cause.
        if !error.is_echo() {
            let message = error.cause().to_string();
            if error.is_of_call() { self.link.interrupt(message) } else { self.link.abort(message) }
        }
        self.stages.values_mut().for_each(|stage| stage.engine_mut().clear());
        if !error.is_of_call() {
            // Nothing will use these.
            self.stages.values_mut().for_each(|stage| stage.clear());
            self.group.clear();
        }
    }

    /// Drops the state of a failed call, once the link has dropped its messages. All ranks call it. A rank is then in
    /// its state before the call, except for sums of gradients and running statistics, which
    /// [`Rank::recover`](crate::train) restores.
    pub(crate) fn restart(&mut self) {
        // If the members of a group compare their programs, engines record anew: the call may have failed when only
        // some had compared. The graphs of forwards without a backward are dropped too (`stage/state/leaves.rs`).
        self.stages.values_mut().for_each(|held| held.restart());
        self.group.restart(&mut self.stages);
        self.compared = [false; 2];
    }

    fn run_row(&mut self, state: &mut RunState<'_>) -> Result<(), ExecuteError> {
        let row = state.plan().row(self.grid().pipeline_rank());
        // All ranks of a pipeline run the same rows, so all compare in the same rows.
        state.compares = match state.run.purpose {
            Purpose::Step(_) => !std::mem::replace(&mut self.compared[0], true),
            Purpose::Evaluation => !std::mem::replace(&mut self.compared[1], true),
            Purpose::Metadata => false,
        };
        self.announce(state);
        let mut left = row;
        while let [action, rest @ ..] = left {
            state.position = row.len() - left.len();
            state.received.clear();
            let merges = self.options.tuning.merge_weights;
            let weights = if merges { weights_of_one_stage(state.plan(), left) } else { Vec::new() };
            if weights.len() > 1 {
                self.run_weights(state, &weights)?;
                left = &left[weights.len()..];
            } else {
                self.run_action(state, action)?;
                left = rest;
            }
        }
        self.read_heads(state)
    }

    fn run_action(&mut self, state: &mut RunState<'_>, action: &Action) -> Result<(), ExecuteError> {
        if let Some(fused) = Fused::of(action).filter(|_| state.run.trains() && self.interleaves()) {
            return self.run_interleaved(state, fused);
        }
        for task in action.tasks() {
            self.start(state, task)?;
            let _span = tracing::trace_span!("task", otel.name = %task, rank = self.link.rank(), cell = state.position)
                .entered();
            self.run_task(state, task)?;
            state.count_held(&self.stages);
            state.record(self.link.rank(), Action::Single(task), state.started);
            if self.is_under_way(task) {
                state.keep_open(task);
            }
            self.advance(state)?;
        }
        Ok(())
    }

    fn run_task(&mut self, state: &mut RunState<'_>, task: Task) -> Result<(), ExecuteError> {
        let Some(of_microbatch) = task.of_microbatch() else { return self.exchange(state, task) };
        match task.op() {
            Op::SendForward | Op::SendBackward => self.send(state, task),
            Op::ReceiveForward | Op::ReceiveBackward => self.post(state, task),
            Op::WaitReceiveForward | Op::WaitReceiveBackward => self.wait_receive(state, task),
            // `Link::send` returns once the payload may be dropped, so there is nothing to wait for.
            Op::WaitSendForward | Op::WaitSendBackward => Ok(()),
            Op::Forward => self.forward(state, of_microbatch),
            _ if state.plan().begins_backward(task) => self.backward(state, of_microbatch),
            Op::Backward | Op::BackwardInput | Op::BackwardWeight => {
                let index = state.index(of_microbatch);
                self.guarded(of_microbatch, |stage| stage.backward_weight(index))?;
                self.refuse_unwritten(of_microbatch, std::iter::empty())
            }
            Op::Unshard | Op::Reshard | Op::ReduceGrad | Op::WaitUnshard | Op::WaitReduceGrad => {
                self.exchange(state, task)
            }
            Op::HeadForward => self.head_forward(state, of_microbatch),
            Op::HeadBackward => self.head_backward(state, of_microbatch),
            Op::EmbeddingForward => self.embedding_forward(state, of_microbatch),
            Op::EmbeddingBackward => self.embedding_backward(state, of_microbatch),
            Op::BroadcastHidden | Op::ReduceHead | Op::ReduceEmbedding | Op::BroadcastGradient => {
                self.start_collective(state, of_microbatch)
            }
        }
    }

    /// Runs adjacent `W`s of one stage in one call.
    fn run_weights(&mut self, state: &mut RunState<'_>, tasks: &[MicrobatchTask]) -> Result<(), ExecuteError> {
        let [first, ..] = *tasks else { return Ok(()) };
        let (rank, cell, count) = (self.link.rank(), state.position, tasks.len());
        self.start(state, first.into())?;
        let _span = tracing::trace_span!("task", otel.name = %first, rank, cell, tasks = count).entered();
        let indices: Vec<usize> = tasks.iter().map(|&task| state.index(task)).collect();
        self.guarded(first, |stage| stage.backward_weights(&indices))?;
        self.refuse_unwritten(first, std::iter::empty())?;
        state.count_held(&self.stages);
        let (start, end) = (state.started.as_secs_f64(), state.now().as_secs_f64());
        let share = (end - start) / count as f64;
        for (position, &task) in tasks.iter().enumerate() {
            let start = start + share * position as f64;
            let action = task.into();
            state.outcome.measured.events.push(Event { rank, action, start, end: start + share });
        }
        self.advance(state)?;
        Ok(())
    }
}

/// The adjacent `W`s of one stage at the start of a row, each after its `I`.
fn weights_of_one_stage(plan: &Plan, row: &[Action]) -> Vec<MicrobatchTask> {
    let task = |action: &Action| match action {
        Action::Single(task) if task.op() == Op::BackwardWeight && !plan.begins_backward(*task) => task.of_microbatch(),
        _ => None,
    };
    let Some(first) = row.first().and_then(task) else { return Vec::new() };
    row.iter().map_while(task).take_while(|task| task.stage() == first.stage()).collect()
}
