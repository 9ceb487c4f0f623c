//! The errors of the scan, in cold functions: the loop runs for every task, an error is made at most once.

use super::state::{Refusal, Row, Scan};
use crate::plan::action::Action;
use crate::plan::check::error::CheckError;
use crate::plan::op::Op;
use crate::plan::rows::Plan;
use crate::plan::stage_id::StageId;
use crate::plan::task::{MicrobatchTask, Task};

/// `refusal!(scan, Kind { fields })`: the error of that kind at the current cell, with the common fields.
macro_rules! refusal {
    ($scan:expr, $kind:ident $({ $($field:ident),* })?) => {{
        let (rank, step, action, grid) = $scan.place();
        Box::new(crate::plan::check::error::CheckError::$kind { rank, step, action, $($($field,)*)? grid })
    }};
}
pub(super) use refusal;

impl Scan<'_> {
    #[inline]
    pub(super) fn refuse_twice(&self, seen: u8, task: impl Into<Task>) -> Result<(), Refusal> {
        if seen == 0 { Ok(()) } else { Err(self.duplicate(task.into())) }
    }

    /// Requires the bit of `op` on the same microbatch, at the stage `offset` stages further on.
    #[inline]
    pub(super) fn require(&self, seen: u8, task: MicrobatchTask, op: Op, offset: isize) -> Result<(), Refusal> {
        if seen != 0 { Ok(()) } else { Err(self.unmet(task, op, offset)) }
    }

    /// The place of the current cell: the common fields of errors.
    #[cold]
    pub(super) fn place(&self) -> (usize, usize, Action, String) {
        let Row { rank, step, action, .. } = self.row;
        (rank, step, action, self.plan.excerpt(rank, step))
    }

    #[cold]
    pub(super) fn no_such_stage(&self) -> Refusal {
        let (stages, routes) = (self.plan.stages(), self.plan.placement().routes());
        refusal!(self, NoSuchStage { stages, routes })
    }

    #[cold]
    pub(super) fn unused_gradient(&self, task: MicrobatchTask) -> Refusal {
        let (task, first) = (task.into(), self.plan.first_trained());
        refusal!(self, UnusedGradient { task, first })
    }

    #[cold]
    pub(super) fn duplicate(&self, task: Task) -> Refusal {
        let first = self.first(task);
        refusal!(self, Duplicate { task, first })
    }

    #[cold]
    pub(super) fn both_backwards(&self, task: MicrobatchTask, other: Op) -> Refusal {
        let first = self.first(task.with(task.stage(), other).into());
        let task = task.into();
        refusal!(self, BothBackwards { task, first })
    }

    #[cold]
    pub(super) fn unmet(&self, task: MicrobatchTask, op: Op, offset: isize) -> Refusal {
        let stage = StageId::in_route(task.stage().route(), task.stage().index().saturating_add_signed(offset));
        let (task, needs) = (task.into(), task.with(stage, op).into());
        refusal!(self, Unmet { task, needs })
    }

    #[cold]
    pub(super) fn needless(&self, task: MicrobatchTask) -> Refusal {
        let neighbour = self.plan.placement().peer(task.into());
        refusal!(self, NeedlessTransfer { neighbour })
    }

    #[cold]
    pub(super) fn unstarted(&self, task: Task, start: Op) -> Refusal {
        let needs = Task::whole_stage(task.stage(), start);
        refusal!(self, Unmet { task, needs })
    }

    #[cold]
    pub(super) fn late_wait(&self, task: Task, user: Task) -> Refusal {
        let user = self.plan.as_written(user);
        let first = self.first(user);
        refusal!(self, LateWait { task, user, first })
    }

    /// The last computation of a stage before this step.
    #[cold]
    pub(super) fn last_use(&self, task: Task) -> Task {
        let row = &self.plan.row(self.row.rank)[..self.row.step];
        let mut tasks = row.iter().rev().flat_map(|action| action.tasks());
        tasks.find(|t| t.stage() == task.stage() && t.op().is_compute()).unwrap_or(task)
    }

    #[cold]
    pub(super) fn sharded(&self, task: Task) -> Refusal {
        refusal!(self, Sharded { task })
    }

    /// The last step before this one that has a task.
    fn first(&self, task: Task) -> usize {
        let before = &self.plan.row(self.row.rank)[..self.row.step];
        before.iter().rposition(|action| action.tasks().any(|t| t == task)).unwrap_or(0)
    }
}

#[cold]
pub(super) fn missing(plan: &Plan, rank: usize, task: Task) -> Refusal {
    let step = plan.row(rank).len();
    Box::new(CheckError::Missing { rank, step, task, grid: plan.excerpt(rank, step) })
}
