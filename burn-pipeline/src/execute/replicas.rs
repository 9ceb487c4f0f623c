//! What a row does with the data-parallel replicas of its stages; see [`group`](crate::group).

use super::ExecuteError;
use super::interpreter::Executor;
use super::pass::Pass;
use crate::link::LinkError;
use crate::plan::{Op, Task};

impl Executor {
    /// `REDUCE_GRAD` and its wait.
    pub(super) fn exchange(&mut self, pass: &Pass<'_>, task: Task) -> Result<(), ExecuteError> {
        let replicated = self.grid().replicas() > 1;
        match task.op() {
            Op::ReduceGrad if replicated => self.start_reduction(pass, task),
            Op::WaitReduceGrad if replicated => self.finish_exchanges(),
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

    /// Ends all exchanges that were started.
    pub(super) fn finish_exchanges(&mut self) -> Result<(), ExecuteError> {
        let deadline = self.deadline();
        let finished = self.group.finish_reductions(self.link.as_mut(), &mut self.stages, deadline);
        finished.map_err(|source| self.apart(source))
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

    /// Forgets exchanges that were started.
    pub(crate) fn forget_exchanges(&mut self) {
        self.group.forget();
    }

    fn apart(&self, source: LinkError) -> ExecuteError {
        ExecuteError::Link { rank: self.rank(), task: None, source }
    }
}
