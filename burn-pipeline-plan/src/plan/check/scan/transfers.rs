//! Sends and receives between neighbours, and their waits.

use super::refusals::refusal;
use super::state::{F, I, RECEIVED_B, RECEIVED_F, Refusal, SENT_B, SENT_F, Scan};
use crate::plan::check::channels::Part;
use crate::plan::edges::{Side, Slot};
use crate::plan::op::Op;
use crate::plan::task::MicrobatchTask;

impl Scan<'_> {
    #[inline]
    pub(super) fn transfer(&mut self, slot: usize, at: Slot, pair: usize, task: MicrobatchTask) -> Result<(), Refusal> {
        let events = self.events[pair];
        let (side, event, own) = match task.op() {
            Op::SendForward => (at.after, SENT_F, Some((F, Op::Forward))),
            Op::ReceiveForward => (at.before, RECEIVED_F, None),
            Op::SendBackward => (at.before, SENT_B, Some((I, Op::Backward))),
            _ => (at.after, RECEIVED_B, None),
        };
        if side != Side::OtherRank {
            return Err(self.needless(task));
        }
        if self.is_unused(task) {
            return Err(self.unused_gradient(task));
        }
        self.refuse_twice(events & event, task)?;
        match own {
            Some((made, op)) => self.require(events & made, task, op, 0)?,
            None => self.hold_received()?,
        }
        self.events[pair] |= event;
        let part = if self.awaited.at(self.row.rank, self.row.step) { Part::Start } else { Part::Whole };
        if part == Part::Start && own.is_some() {
            self.hold_sent()?;
        }
        self.transfers.push(slot, at.microbatches, pair, task.op(), part);
        Ok(())
    }

    /// Returns true if a transfer moves a gradient to a stage before the first one that trains.
    #[inline]
    pub(super) fn is_unused(&self, task: MicrobatchTask) -> bool {
        match task.op() {
            Op::SendBackward if task.is_skip() => {
                task.skip_peer().is_some_and(|to| to.index() < self.plan.first_trained())
            }
            Op::SendBackward => !self.plan.gives_gradients(task.stage()),
            Op::ReceiveBackward => task.stage().index() < self.plan.first_trained(),
            _ => false,
        }
    }

    /// Checks the wait for a send or a receive.
    pub(super) fn wait(&mut self, slot: usize, at: Slot, pair: usize, task: MicrobatchTask) -> Result<(), Refusal> {
        let (start, event, user) = match task.op() {
            Op::WaitSendForward => (Op::SendForward, SENT_F, None),
            Op::WaitReceiveForward => (Op::ReceiveForward, RECEIVED_F, Some((F, Op::Forward))),
            Op::WaitSendBackward => (Op::SendBackward, SENT_B, None),
            _ => (Op::ReceiveBackward, RECEIVED_B, Some((I, Op::Backward))),
        };
        self.require(self.events[pair] & event, task, start, 0)?;
        self.refuse_twice(self.waits[pair] & event, task)?;
        match user {
            Some((used, op)) if self.events[pair] & used != 0 => {
                return Err(self.late_wait(task.into(), task.with(task.stage(), op).into()));
            }
            Some(_) => {}
            None => self.row.sent -= 1,
        }
        self.waits[pair] |= event;
        self.transfers.push(slot, at.microbatches, pair, start, Part::Wait);
        Ok(())
    }

    #[inline]
    pub(super) fn hold_received(&mut self) -> Result<(), Refusal> {
        self.row.held += 1;
        let held = self.row.held;
        match self.options.received_cap {
            Some(cap) if held > cap => Err(refusal!(self, ReceivedCap { held, cap })),
            _ => Ok(()),
        }
    }

    /// Counts a sent payload, which must be kept until its wait.
    pub(super) fn hold_sent(&mut self) -> Result<(), Refusal> {
        self.row.sent += 1;
        let held = self.row.sent;
        match self.options.sent_cap {
            Some(cap) if held > cap => Err(refusal!(self, SentCap { held, cap })),
            _ => Ok(()),
        }
    }
}
