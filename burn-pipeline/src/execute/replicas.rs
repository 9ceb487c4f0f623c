//! What a row does with the data-parallel replicas of its stages; see [`group`](crate::group).

use super::interpreter::Executor;
use super::run_state::RunState;
use super::{ExecuteError, ReplicaShare, Run};
use crate::group::poll_deadline;
use crate::link::{Activity, LinkError};
use crate::plan::{Op, StageId, Task};
use crate::stage::{ErasedStage, ParameterState, StageError};
use burn::module::ParamId;
use std::collections::HashMap;
use std::time::Instant;

/// An optimizer's state, by parameter; `None` without an optimizer.
type States = Option<HashMap<ParamId, ParameterState>>;

impl Executor {
    /// `UNSHARD`, `RESHARD`, `REDUCE_GRAD`, and waits for them.
    pub(super) fn exchange(&mut self, state: &mut RunState<'_>, task: Task) -> Result<(), ExecuteError> {
        if self.grid().replicas() < 2 {
            return Err(ExecuteError::Unsupported { rank: self.rank(), task });
        }
        match task.op() {
            Op::ReduceGrad => self.start_reduction(state, task),
            Op::WaitReduceGrad => {
                self.finish_reduction(task.stage())?;
                state.close(Task::whole_stage(task.stage(), Op::ReduceGrad));
                Ok(())
            }
            // Of a stage that is not sharded, everything is there.
            Op::Unshard => self.start_gather(task.stage(), Some(task)),
            Op::WaitUnshard => self.await_parameters(state, task),
            Op::Reshard => {
                // Replicas that run other plans have gathered everything until their rows are done.
                if state.run.share.same_plan {
                    self.await_parameters(state, task)?;
                    self.release(task.stage());
                }
                Ok(())
            }
            _ => Err(ExecuteError::Unsupported { rank: self.rank(), task }),
        }
    }

    /// Is what a task started still on its way?
    pub(super) fn is_under_way(&self, task: Task) -> bool {
        match task.op() {
            Op::ReduceGrad => self.group.reducing().contains(&task.stage()),
            Op::Unshard => self.group.is_coming(task.stage()),
            _ => false,
        }
    }

    fn start_reduction(&mut self, state: &RunState<'_>, task: Task) -> Result<(), ExecuteError> {
        let (rank, stage, deadline) = (self.rank(), task.stage(), self.deadline());
        let ReplicaShare { reduce, reduce_shards, .. } = state.run.share;
        let reduces = if self.group.is_sharded(stage) { reduce_shards } else { reduce };
        if !(reduces && state.run.train) {
            return Ok(());
        }
        let held = self.stages.get_mut(&stage).ok_or(ExecuteError::NoStage { rank, stage })?;
        let started = self.group.start_reduction(self.link.as_mut(), stage, held.as_mut(), deadline);
        started.map_err(|source| self.link_error(task, source))
    }

    /// Goes on with reductions that are under way as far as it goes without waiting. Gives the ranks from which more is
    /// to come and nothing is there.
    pub(super) fn move_on(&mut self, state: &mut RunState<'_>) -> Result<Vec<usize>, ExecuteError> {
        let deadline = self.deadline();
        let moved = self.group.move_on(self.link.as_mut(), &mut self.stages, deadline);
        let (done, silent) = moved.map_err(|source| self.apart(source))?;
        done.into_iter().for_each(|stage| state.close(Task::whole_stage(stage, Op::ReduceGrad)));
        Ok(silent)
    }

    /// Goes on with reductions until a message of the plan is here, or none is under way, or it comes so late that
    /// the wait for it must be the link's.
    pub(super) fn move_on_until(
        &mut self,
        state: &mut RunState<'_>,
        from: usize,
        deadline: Instant,
    ) -> Result<(), ExecuteError> {
        let until = poll_deadline(deadline);
        while self.group.is_reducing() && from != self.rank() {
            let mut ranks = self.move_on(state)?;
            ranks.push(from);
            let arrived = self.link.arrived(&ranks, until).map_err(|source| self.apart(source))?;
            if arrived.is_none_or(|(rank, _)| rank == from) {
                break;
            }
        }
        Ok(())
    }

    /// Waits for the end of a stage's reduction.
    fn finish_reduction(&mut self, stage: StageId) -> Result<(), ExecuteError> {
        let deadline = self.deadline();
        let finished = self.group.finish_reduction(self.link.as_mut(), &mut self.stages, stage, deadline);
        finished.map_err(|source| self.apart(source))
    }

    /// Ends what a row has started, and lets go of what it has gathered.
    pub(super) fn end_exchanges(&mut self, state: &mut RunState<'_>) -> Result<(), ExecuteError> {
        let (rank, deadline) = (self.rank(), self.deadline());
        let mut start = state.run.began.elapsed();
        let summed = self.group.sum_all(self.link.as_mut(), deadline);
        summed.map_err(|source| self.apart(source))?;
        for stage in self.group.reducing() {
            self.finish_reduction(stage)?;
            state.note(rank, Task::whole_stage(stage, Op::WaitReduceGrad).into(), start);
            state.close(Task::whole_stage(stage, Op::ReduceGrad));
            start = state.run.began.elapsed();
        }
        self.release_all();
        Ok(())
    }

    /// Gathers the parameters of all stages before a row that does not say when, or that not all replicas run.
    pub(super) fn gather_unplanned(&mut self, run: &Run<'_>) -> Result<(), ExecuteError> {
        let planned = run.share.same_plan && run.plan.plan().any_task(|task| task.op() == Op::Unshard);
        if planned { Ok(()) } else { self.gather_all() }
    }

    fn start_gather(&mut self, stage: StageId, task: Option<Task>) -> Result<(), ExecuteError> {
        let (rank, deadline) = (self.rank(), self.deadline());
        let held = self.stages.get(&stage).ok_or(ExecuteError::NoStage { rank, stage })?;
        let started = self.group.start_gather(self.link.as_mut(), stage, held.as_ref(), deadline);
        started.map_err(|source| ExecuteError::Link { rank, task, source })
    }

    /// Waits for the parameters of the task's stage, if they are on their way.
    pub(super) fn await_parameters(&mut self, state: &mut RunState<'_>, task: Task) -> Result<(), ExecuteError> {
        let stage = task.stage();
        if !self.group.is_coming(stage) {
            return Ok(());
        }
        let start = state.run.began.elapsed();
        self.finish_gather(stage, Some(task))?;
        state.close(Task::whole_stage(stage, Op::Unshard));
        if task.op() != Op::WaitUnshard {
            state.note(self.rank(), Task::whole_stage(stage, Op::WaitUnshard).into(), start);
        }
        self.link.announce(Activity::Task(task));
        state.started = state.run.began.elapsed();
        Ok(())
    }

    fn finish_gather(&mut self, stage: StageId, task: Option<Task>) -> Result<(), ExecuteError> {
        let (rank, deadline) = (self.rank(), self.deadline());
        let held = self.stages.get_mut(&stage).ok_or(ExecuteError::NoStage { rank, stage })?;
        let finished = self.group.finish_gather(self.link.as_mut(), stage, held.as_mut(), deadline);
        finished.map_err(|source| ExecuteError::Link { rank, task, source })
    }

    fn release(&mut self, stage: StageId) {
        if let Some(held) = self.stages.get_mut(&stage) {
            self.group.release(stage, held.as_mut());
        }
    }

    fn keys(&self) -> Vec<StageId> {
        self.stages.keys().copied().collect()
    }

    /// Are parameters of some stage of this rank sharded?
    pub(crate) fn is_sharded(&self) -> bool {
        self.group.any_sharded()
    }

    /// Are those of this stage?
    pub(crate) fn shards(&self, stage: StageId) -> bool {
        self.group.is_sharded(stage)
    }

    /// Keeps this replica's pieces of the parameters from now on: of stages that say so themselves, and of those that say
    /// nothing where `all` says so.
    pub(crate) fn shard(&mut self, all: bool) -> Result<(), ExecuteError> {
        let rank = self.rank();
        if self.grid().replicas() < 2 {
            return Ok(());
        }
        for (&stage, held) in &mut self.stages {
            if !held.wants_shards().unwrap_or(all) {
                continue;
            }
            let device = |message| ExecuteError::Device { rank, message };
            match held.steps_by_element().map_err(|error: StageError| device(error.to_string()))? {
                true => self.group.shard(stage, held.as_mut()).map_err(device)?,
                false => return Err(ExecuteError::NotByElement { rank, stage }),
            }
        }
        Ok(())
    }

    /// Gathers the parameters of all stages; nothing, where they are not sharded.
    pub(crate) fn gather_all(&mut self) -> Result<(), ExecuteError> {
        if self.is_sharded() {
            self.keys().into_iter().try_for_each(|stage| self.start_gather(stage, None))?;
            self.keys().into_iter().try_for_each(|stage| self.finish_gather(stage, None))?;
        }
        Ok(())
    }

    /// Lets go of all gathered parameters.
    pub(crate) fn release_all(&mut self) {
        if self.is_sharded() {
            self.keys().into_iter().for_each(|stage| self.release(stage));
        }
    }

    /// Gives all replicas the weights of the first.
    pub(crate) fn broadcast_weights(&mut self) -> Result<(), ExecuteError> {
        let deadline = self.deadline();
        let started = self.group.broadcast_weights(self.link.as_mut(), &mut self.stages, deadline);
        started.map_err(|source| self.apart(source))
    }

    /// Reduces the gradients of stages that the plan has not reduced: the sharded ones, or the others.
    pub(crate) fn reduce_remaining(&mut self, sharded: bool) -> Result<(), ExecuteError> {
        let deadline = self.deadline();
        let reduced = self.group.reduce_remaining(self.link.as_mut(), &mut self.stages, sharded, deadline);
        reduced.map_err(|source| self.apart(source))
    }

    /// With ordered accumulation, gives the first replica the whole sums of earlier batches, where they are sharded.
    pub(crate) fn gather_sums_on_first(&mut self) -> Result<(), ExecuteError> {
        for stage in self.keys() {
            let (rank, deadline) = (self.rank(), self.deadline());
            let held = self.stages.get_mut(&stage).ok_or(ExecuteError::NoStage { rank, stage })?;
            let taken = self.group.gather_sums_on_first(self.link.as_mut(), stage, held.as_mut(), deadline);
            taken.map_err(|source| self.apart(source))?;
        }
        Ok(())
    }

    /// Gives the stages their pieces of the gradients, where parameters are sharded.
    pub(crate) fn set_shard_gradients(&mut self) {
        self.group.set_shard_gradients(&mut self.stages);
    }

    /// Replaces pieces of gradients by whole ones.
    pub(crate) fn gather_gradients(&mut self) -> Result<(), ExecuteError> {
        for stage in self.keys().into_iter().filter(|&stage| self.shards(stage)).collect::<Vec<_>>() {
            let (rank, deadline) = (self.rank(), self.deadline());
            let held = self.stages.get_mut(&stage).ok_or(ExecuteError::NoStage { rank, stage })?;
            let whole = self.group.gather_gradients(self.link.as_mut(), stage, held.as_mut(), deadline);
            whole.map_err(|source| self.apart(source))?;
        }
        Ok(())
    }

    /// The state of a stage's optimizer, whole; all replicas call it. The inner error is the optimizer's.
    pub(crate) fn gather_optimizer_states(&mut self, stage: StageId) -> Result<Result<States, String>, ExecuteError> {
        let (rank, deadline) = (self.rank(), self.deadline());
        let held = self.stages.get(&stage).ok_or(ExecuteError::NoStage { rank, stage })?;
        let mut states = match held.optimizer_state() {
            Ok(Some(states)) => states,
            Ok(None) => return Ok(Ok(None)),
            Err(error) => return Ok(Err(error.to_string())),
        };
        if !self.shards(stage) {
            return Ok(Ok(Some(states)));
        }
        let whole = self.group.gather_optimizer_states(self.link.as_mut(), stage, &mut states, held.as_ref(), deadline);
        let whole = whole.map_err(|source| self.apart(source))?;
        Ok(whole.map(|()| Some(states)))
    }

    /// A stage with what a checkpoint offers it, of which its optimizer gets this replica's pieces.
    pub(crate) fn offer(&mut self, stage: StageId, mut state: crate::stage::StageState) -> Result<(), String> {
        let Some(held) = self.stages.get_mut(&stage) else { return Ok(()) };
        if let Some(states) = state.optimizer.as_mut().filter(|_| self.group.is_sharded(stage)) {
            self.group.pieces_of_states(stage, states, held.as_ref())?;
        }
        held.offer(state).map_err(|error| error.to_string())
    }

    /// Cuts parameters that were just replaced by whole ones down to this replica's pieces.
    pub(crate) fn reshard(&mut self) -> Result<(), ExecuteError> {
        let rank = self.rank();
        let (stages, group) = (&mut self.stages, &mut self.group);
        let shard = |(&stage, held): (&StageId, &mut Box<dyn ErasedStage>)| match group.is_sharded(stage) {
            true => group.shard(stage, held.as_mut()),
            false => Ok(()),
        };
        stages.iter_mut().try_for_each(shard).map_err(|message| ExecuteError::Device { rank, message })
    }

    /// Forgets exchanges that were started.
    pub(crate) fn cancel_exchanges(&mut self) {
        self.group.forget();
    }

    fn apart(&self, source: LinkError) -> ExecuteError {
        ExecuteError::Link { rank: self.rank(), task: None, source }
    }
}
