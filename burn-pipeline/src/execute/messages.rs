//! Sends and receives of the plan.
//!
//! A receive is posted where the plan says, and awaited where its value is used or at its `WAIT_RECV_*`, whichever
//! comes first. Awaiting it at the receive itself would stall a rank that has other work first.
//!
//! A transfer is one message between two ranks; between groups of different sizes it is one message with each
//! counterpart (`recut`).

use super::error::ExecuteError;
use super::executor::Executor;
use super::recut::{Recut, cuts, unmarked};
use super::run_state::RunState;
use super::transfer::{Transfer, along};
use crate::link::{Activity, Header, Link, Message};
use crate::payload::Payload;
use burn_pipeline_plan::plan::{MicrobatchTask, Op, StageId, Task};
use std::time::Instant;

impl Executor {
    /// `SEND_*`: passes the value that an earlier task made to the link.
    pub(super) fn send(&mut self, state: &mut RunState<'_>, task: Task) -> Result<(), ExecuteError> {
        let Transfer { header, peer, .. } = self.transfer(state, task)?;
        let messages = state.values.take_outgoing(header).ok_or_else(|| self.no_input(task))?;
        let deadline = self.deadline();
        for (to, payload) in self.grid().counterparts(peer).zip(messages) {
            let sent = self.link.send(to, Message { header, payload }, deadline);
            sent.map_err(|source| self.link_error(Some(task), source))?;
        }
        Ok(())
    }

    /// `RECV_*`: records that the message will come.
    pub(super) fn post(&mut self, state: &mut RunState<'_>, receive: Task) -> Result<(), ExecuteError> {
        let Transfer { header, peer, .. } = self.transfer(state, receive)?;
        self.grid().counterparts(peer).for_each(|from| state.values.post(from, header));
        Ok(())
    }

    /// `WAIT_RECV_*`: waits until the message of the receive is in the inbox.
    pub(super) fn wait_receive(&mut self, state: &mut RunState<'_>, wait: Task) -> Result<(), ExecuteError> {
        let receive = wait.awaits().ok_or_else(|| self.no_input(wait))?;
        let Transfer { header, peer, .. } = self.transfer(state, receive)?;
        self.grid().counterparts(peer).try_for_each(|from| self.arrive(state, wait, header, from))
    }

    /// Takes the value for a compute task from the previous stage (forward) or the next one (backward), or from the
    /// stage at the other end of a skip edge.
    pub(super) fn take(
        &mut self,
        state: &mut RunState<'_>,
        task: MicrobatchTask,
        skip: Option<StageId>,
    ) -> Result<Payload, ExecuteError> {
        let op = if task.op() == Op::Forward { Op::ReceiveForward } else { Op::ReceiveBackward };
        let receive = along(task, op, skip);
        let transfer = self.transfer(state, receive)?;
        let (start, grid) = (state.now(), self.grid());
        let senders = grid.counterparts(transfer.peer);
        let mut messages = Vec::with_capacity(senders.len());
        for from in senders.clone() {
            self.arrive(state, task.into(), transfer.header, from)?;
            let message = state.values.take(from, transfer.header);
            messages.push(message.ok_or_else(|| self.no_input(task.into()))?);
        }
        let value = self.joined(state, task, (receive, transfer.peer), messages)?;
        let what = if task.op() == Op::Forward { "input" } else { "gradient of its output" };
        state.note(task, what, Some((transfer.peer_stage, senders.start)), &value);
        if transfer.peer != grid.pipeline_rank() {
            state.record(self.rank(), receive.into(), start);
        }
        // The task itself starts when its input has arrived: the wait before that belongs to the receive.
        state.started = state.now();
        Ok(value)
    }

    /// Joins the messages of a receive from a pipeline rank.
    fn joined(
        &self,
        state: &mut RunState<'_>,
        task: MicrobatchTask,
        (receive, peer): (Task, usize),
        messages: Vec<Payload>,
    ) -> Result<Payload, ExecuteError> {
        let grid = self.grid();
        let recut = Recut::between(&grid, peer, grid.pipeline_rank());
        let value = recut.join(grid.counterparts(peer), messages);
        let value = value.map_err(|source| self.stage_error(task, source))?;
        if recut.is_even() {
            return Ok(value);
        }
        if task.op() != Op::Forward {
            return Ok(unmarked(value));
        }
        if let Some(back) = Transfer::back(state.plan().placement(), receive).filter(|_| state.run.trains()) {
            state.cuts.insert(back.header, cuts(&value));
        }
        Ok(value)
    }

    /// Waits until a message of another rank is in the inbox.
    pub(super) fn arrive(
        &mut self,
        state: &mut RunState<'_>,
        task: Task,
        header: Header,
        from: usize,
    ) -> Result<(), ExecuteError> {
        let (began, deadline) = (Instant::now(), self.deadline());
        self.link.set_activity(Activity::Waiting(header, from));
        if !state.values.has(from, header) {
            // Reductions proceed first: another replica may need this rank's sums before it can send the awaited
            // message.
            self.advance_until_message(state, from, deadline)?;
            self.link.set_activity(Activity::Waiting(header, from));
        }
        let here = state.values.receive(&mut self.link, header, from, deadline);
        let here = here.map_err(|source| self.link_error(Some(task), source.since(began)))?;
        self.link.set_activity(Activity::Task(task));
        if here { Ok(()) } else { Err(self.no_input(task)) }
    }

    fn transfer(&self, state: &RunState<'_>, task: Task) -> Result<Transfer, ExecuteError> {
        Transfer::of(state.plan().placement(), task).ok_or_else(|| self.no_input(task))
    }
}
