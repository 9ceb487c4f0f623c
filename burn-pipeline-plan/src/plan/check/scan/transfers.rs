//! Sends and receives between neighbours, and their waits.

use super::refusals::refusal;
use super::state::{F, I, RECEIVED_B, RECEIVED_F, Refusal, SENT_B, SENT_F, Scan};
use crate::plan::check::channels::Part;
use crate::plan::edges::{Side, Slot};
use crate::plan::op::Op;
use crate::plan::task::MicrobatchTask;

/// The bit of a send or a receive, and the bit and operation of the computation that makes or uses its value.
#[inline]
fn bits(start: Op) -> (u8, u8, Op) {
    match start {
        Op::SendForward => (SENT_F, F, Op::Forward),
        Op::ReceiveForward => (RECEIVED_F, F, Op::Forward),
        Op::SendBackward => (SENT_B, I, Op::Backward),
        _ => (RECEIVED_B, I, Op::Backward),
    }
}

impl Scan<'_> {
    /// Checks a send or a receive between neighbours.
    #[inline]
    pub(super) fn transfer(&mut self, slot: usize, at: Slot, pair: usize, task: MicrobatchTask) -> Result<(), Refusal> {
        let side = if task.op().is_towards_next() { at.after } else { at.before };
        if side != Side::OtherRank {
            return Err(self.needless(task));
        }
        let (event, part) = self.start(self.events[pair], pair, task)?;
        self.events[pair] |= event;
        self.transfers.push(slot, at.microbatches, pair, task.op(), part);
        Ok(())
    }

    /// Checks the wait for a send or a receive between neighbours.
    pub(super) fn wait(&mut self, slot: usize, at: Slot, pair: usize, task: MicrobatchTask) -> Result<(), Refusal> {
        let start = task.awaits().unwrap_or(task);
        let event = self.end((self.events[pair], self.waits[pair]), pair, task, start)?;
        self.waits[pair] |= event;
        self.transfers.push(slot, at.microbatches, pair, start.op(), Part::Wait);
        Ok(())
    }

    /// Checks a send or a receive of a value with these events so far; `pair` is that of its own stage. Returns its
    /// bit and the part of it that the cell performs.
    #[inline]
    pub(super) fn start(&mut self, events: u8, pair: usize, task: MicrobatchTask) -> Result<(u8, Part), Refusal> {
        let (event, made, op) = bits(task.op());
        if self.is_unused(task) {
            return Err(self.unused_gradient(task));
        }
        self.refuse_twice(events & event, task)?;
        let sends = task.op().is_send();
        if sends {
            self.require(self.events[pair] & made, task, op, 0)?;
        } else {
            self.hold_received()?;
        }
        if !self.awaited.at(self.row.rank, self.row.step) {
            return Ok((event, Part::Whole));
        }
        if sends {
            self.hold_sent()?;
        }
        Ok((event, Part::Start))
    }

    /// Checks the wait for the transfer `start` of a value with these events and waits so far: once, after its start,
    /// and before a received value is used. Returns the bit of the start.
    pub(super) fn end(
        &mut self,
        (events, waits): (u8, u8),
        pair: usize,
        task: MicrobatchTask,
        start: MicrobatchTask,
    ) -> Result<u8, Refusal> {
        let (event, used, op) = bits(start.op());
        if events & event == 0 {
            let (task, needs) = (task.into(), start.into());
            return Err(refusal!(self, Unmet { task, needs }));
        }
        self.refuse_twice(waits & event, task)?;
        if start.op().is_send() {
            self.row.sent -= 1;
        } else if self.events[pair] & used != 0 {
            return Err(self.late_wait(task.into(), task.with(task.stage(), op).into()));
        }
        Ok(event)
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
