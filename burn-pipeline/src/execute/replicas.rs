//! What a row does with the data-parallel replicas of its stages; see [`group`](crate::group).

use super::interpreter::Executor;
use super::pass::Pass;
use super::{ExecuteError, Run};
use crate::link::LinkError;
use crate::plan::{Op, Stage, Task};
use crate::stage::{ErasedStage, ParameterState, StageError};
use burn::module::ParamId;
use std::collections::HashMap;

/// An optimizer's state, by parameter; `None` without an optimizer.
type States = Option<HashMap<ParamId, ParameterState>>;

impl Executor {
    /// `UNSHARD`, `RESHARD`, `REDUCE_GRAD`, and waits for them.
    pub(super) fn exchange(&mut self, pass: &Pass<'_>, task: Task) -> Result<(), ExecuteError> {
        let (replicated, sharded) = (self.grid().replicas() > 1, self.group.is_sharded());
        match task.op() {
            Op::ReduceGrad if replicated => self.start_reduction(pass, task),
            Op::WaitReduceGrad if replicated => self.finish_exchanges(),
            Op::Unshard if sharded => self.start_gather(task.stage(), Some(task)),
            Op::WaitUnshard if sharded => self.await_parameters(task),
            Op::Reshard if sharded => {
                // Replicas that run other plans have gathered everything until their rows are done.
                if pass.run.part.together {
                    self.await_parameters(task)?;
                    self.release(task.stage());
                }
                Ok(())
            }
            _ => Err(ExecuteError::Unsupported { rank: self.rank(), task }),
        }
    }

    fn start_reduction(&mut self, pass: &Pass<'_>, task: Task) -> Result<(), ExecuteError> {
        if !(pass.run.part.reduce && pass.run.train) {
            return Ok(());
        }
        let (rank, stage, deadline) = (self.rank(), task.stage(), self.deadline());
        let held = self.stages.get_mut(&stage).ok_or(ExecuteError::NoStage { rank, stage })?;
        let started = self.group.start_reduction(self.link.as_mut(), stage, held.as_mut(), deadline);
        started.map_err(|source| self.link_error(task, source))
    }

    /// Ends all reductions that were started.
    fn finish_exchanges(&mut self) -> Result<(), ExecuteError> {
        let deadline = self.deadline();
        let finished = self.group.finish_reductions(self.link.as_mut(), &mut self.stages, deadline);
        finished.map_err(|source| self.apart(source))
    }

    /// Ends what a row has started, and lets go of what it has gathered.
    pub(super) fn end_exchanges(&mut self) -> Result<(), ExecuteError> {
        self.finish_exchanges()?;
        self.release_all();
        Ok(())
    }

    /// Gathers the parameters of all stages before a row that does not say when, or that not all replicas run.
    pub(super) fn gather_unplanned(&mut self, run: &Run<'_>) -> Result<(), ExecuteError> {
        let planned = run.part.together && run.plan.plan().any_task(|task| task.op() == Op::Unshard);
        if planned { Ok(()) } else { self.gather_all() }
    }

    fn start_gather(&mut self, stage: Stage, task: Option<Task>) -> Result<(), ExecuteError> {
        let (rank, deadline) = (self.rank(), self.deadline());
        let held = self.stages.get(&stage).ok_or(ExecuteError::NoStage { rank, stage })?;
        let started = self.group.start_gather(self.link.as_mut(), stage, held.as_ref(), deadline);
        started.map_err(|source| ExecuteError::Link { rank, task, source })
    }

    /// Waits for the parameters of the task's stage, if they are on their way.
    pub(super) fn await_parameters(&mut self, task: Task) -> Result<(), ExecuteError> {
        if !self.group.is_coming(task.stage()) {
            return Ok(());
        }
        self.finish_gather(task.stage(), Some(task))
    }

    fn finish_gather(&mut self, stage: Stage, task: Option<Task>) -> Result<(), ExecuteError> {
        let (rank, deadline) = (self.rank(), self.deadline());
        let held = self.stages.get_mut(&stage).ok_or(ExecuteError::NoStage { rank, stage })?;
        let finished = self.group.finish_gather(self.link.as_mut(), stage, held.as_mut(), deadline);
        finished.map_err(|source| ExecuteError::Link { rank, task, source })
    }

    fn release(&mut self, stage: Stage) {
        if let Some(held) = self.stages.get_mut(&stage) {
            self.group.release(stage, held.as_mut());
        }
    }

    fn keys(&self) -> Vec<Stage> {
        self.stages.keys().copied().collect()
    }

    /// Are parameters sharded?
    pub(crate) fn is_sharded(&self) -> bool {
        self.group.is_sharded()
    }

    /// Keeps this replica's pieces of all parameters from now on.
    pub(crate) fn shard(&mut self) -> Result<(), ExecuteError> {
        let rank = self.rank();
        for (&stage, held) in &mut self.stages {
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
    pub(crate) fn equal_start(&mut self) -> Result<(), ExecuteError> {
        let deadline = self.deadline();
        let started = self.group.equal_start(self.link.as_mut(), &mut self.stages, deadline);
        started.map_err(|source| self.apart(source))
    }

    /// Reduces the gradients of stages that the plan has not reduced.
    pub(crate) fn reduce_the_rest(&mut self) -> Result<(), ExecuteError> {
        let deadline = self.deadline();
        let reduced = self.group.reduce_the_rest(self.link.as_mut(), &mut self.stages, deadline);
        reduced.map_err(|source| self.apart(source))
    }

    /// Gives the stages their pieces of the gradients, where parameters are sharded.
    pub(crate) fn hand_out(&mut self) {
        self.group.hand_out(&mut self.stages);
    }

    /// Replaces pieces of gradients by whole ones.
    pub(crate) fn whole_gradients(&mut self) -> Result<(), ExecuteError> {
        for stage in self.keys() {
            let (rank, deadline) = (self.rank(), self.deadline());
            let held = self.stages.get_mut(&stage).ok_or(ExecuteError::NoStage { rank, stage })?;
            let whole = self.group.whole_gradients(self.link.as_mut(), stage, held.as_mut(), deadline);
            whole.map_err(|source| self.apart(source))?;
        }
        Ok(())
    }

    /// The state of a stage's optimizer, whole; all replicas call it. The inner error is the optimizer's.
    pub(crate) fn whole_states(&mut self, stage: Stage) -> Result<Result<States, String>, ExecuteError> {
        let (rank, deadline) = (self.rank(), self.deadline());
        let held = self.stages.get(&stage).ok_or(ExecuteError::NoStage { rank, stage })?;
        let mut states = match held.optimizer_state() {
            Ok(Some(states)) => states,
            Ok(None) => return Ok(Ok(None)),
            Err(error) => return Ok(Err(error.to_string())),
        };
        if !self.group.is_sharded() {
            return Ok(Ok(Some(states)));
        }
        let whole = self.group.whole_states(self.link.as_mut(), stage, &mut states, held.as_ref(), deadline);
        let whole = whole.map_err(|source| self.apart(source))?;
        Ok(whole.map(|()| Some(states)))
    }

    /// A stage with what a checkpoint offers it, of which its optimizer gets this replica's pieces.
    pub(crate) fn offer(&mut self, stage: Stage, mut state: crate::stage::StageState) -> Result<(), String> {
        let Some(held) = self.stages.get_mut(&stage) else { return Ok(()) };
        if let Some(states) = state.optimizer.as_mut().filter(|_| self.group.is_sharded()) {
            self.group.pieces_of_states(stage, states, held.as_ref())?;
        }
        held.offer(state).map_err(|error| error.to_string())
    }

    /// Cuts parameters that were just replaced by whole ones down to this replica's pieces.
    pub(crate) fn shard_again(&mut self) -> Result<(), ExecuteError> {
        let rank = self.rank();
        let (stages, group) = (&mut self.stages, &mut self.group);
        let shard = |(&stage, held): (&Stage, &mut Box<dyn ErasedStage>)| group.shard(stage, held.as_mut());
        stages.iter_mut().try_for_each(shard).map_err(|message| ExecuteError::Device { rank, message })
    }

    /// Forgets exchanges that were started.
    pub(crate) fn forget_exchanges(&mut self) {
        self.group.forget();
    }

    fn apart(&self, source: LinkError) -> ExecuteError {
        ExecuteError::Link { rank: self.rank(), task: None, source }
    }
}
