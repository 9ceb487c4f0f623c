//! What a task uses: the neighbour's product, awaited, and its pieces of the batch.

use super::interpreter::Executor;
use super::run_state::RunState;
use super::values::{neighbour, wanted};
use super::{ExecuteError, Run};
use crate::link::{Activity, Header};
use crate::plan::{MicrobatchTask, Op, Placement, StageId};
use crate::stage::{LOSS_SEED, MicrobatchError, Payload, PayloadPart, loss_seed};
use std::time::Instant;

impl Executor {
    /// Waits until the neighbour's product that `user` needs is in the inbox; returns the neighbour's rank.
    pub(super) fn arrive(
        &mut self,
        state: &mut RunState<'_>,
        placement: &Placement,
        task: MicrobatchTask,
        user: Op,
    ) -> Result<usize, ExecuteError> {
        let user = task.with(task.stage(), user);
        let from = neighbour(placement, user, user.op() == Op::Forward).ok_or_else(|| self.no_input(task))?;
        let from = self.grid().rank_of(from);
        let (header, deadline) = (wanted(user), self.deadline());
        let here = self.arrive_from(state, task, header, from, deadline)?;
        self.link.announce(Activity::Task(task.into()));
        if here { Ok(from) } else { Err(self.no_input(task)) }
    }

    /// Waits for a message of the plan; false if it was neither kept nor posted.
    pub(super) fn arrive_from(
        &mut self,
        state: &mut RunState<'_>,
        task: MicrobatchTask,
        header: Header,
        from: usize,
        deadline: Instant,
    ) -> Result<bool, ExecuteError> {
        let began = Instant::now();
        self.link.announce(Activity::Waiting(header, from));
        if !state.values.has(header) {
            self.move_on_until(state, from, deadline)?;
            self.link.announce(Activity::Waiting(header, from));
        }
        let here = state.values.arrive(self.link.as_mut(), header, from, deadline);
        here.map_err(|source| self.link_error(task, source.since(began)))
    }

    /// The neighbour's product that a task needs.
    pub(super) fn take(
        &mut self,
        state: &mut RunState<'_>,
        placement: &Placement,
        task: MicrobatchTask,
    ) -> Result<Payload, ExecuteError> {
        let start = state.run.began.elapsed();
        let from = self.arrive(state, placement, task, task.op())?;
        let taken = state.values.take(wanted(task)).ok_or_else(|| self.no_input(task))?;
        if from != self.rank() {
            let op = if task.op() == Op::Forward { Op::ReceiveForward } else { Op::ReceiveBackward };
            state.note(self.rank(), task.with(task.stage(), op).into(), start);
        }
        // The task itself starts when its input is here: the wait before is the receive's.
        state.started = state.run.began.elapsed();
        Ok(taken)
    }

    /// What a stage reads beside its input: pieces of the batch and, where it is asked for, the loss's seed.
    pub(super) fn extra(&self, run: &Run<'_>, stage: StageId, index: usize) -> Result<Payload, ExecuteError> {
        let held = self.stages.get(&stage).ok_or(ExecuteError::NoStage { rank: self.rank(), stage })?;
        let mut parts = Vec::new();
        for name in held.extras() {
            if name == LOSS_SEED {
                parts.push(PayloadPart::Tensor(loss_seed(run.seeding.seed(run.batch, index), &self.device)));
            } else {
                parts.extend(self.brought(run.batch.extra(stage.index(), &[name], index))?.into_parts());
            }
        }
        Ok(Payload::from_parts(parts))
    }

    pub(super) fn brought(&self, piece: Result<Payload, MicrobatchError>) -> Result<Payload, ExecuteError> {
        piece.map(|piece| self.link.bring(piece)).map_err(|source| self.batch_error(source))
    }
}
