//! Waits: a rank stops until a transfer or collective that it started earlier is over.
//!
//! 1. A send is over, and its payload can be released, when it has arrived (rendezvous) or its last byte has left (with
//!    buffers). A receive is over when it has arrived; a collective when its time on the rank's lane has passed.
//! 2. A transfer or collective with a wait runs beside all actions before its wait, even if the options make transfers
//!    block.

use super::memory::MemoryKind;
use super::messages::is_forward;
use super::report::IdleCause;
use super::state::Engine;
use crate::plan::{Action, MicrobatchTask, Task, Waiting};
use crate::trace::Event;

impl Engine<'_> {
    /// Marks on every message which of its two ends have a wait.
    pub(super) fn mark_awaited(&mut self) {
        let plan = self.plan;
        if !plan.has_waits() || !self.lowered {
            return;
        }
        for (rank, row) in plan.rows().iter().enumerate() {
            for (step, action) in row.iter().enumerate() {
                let Action::Single(task) = *action else { continue };
                if let Some(task) = task.of_microbatch()
                    && task.op().is_transfer()
                    && self.is_awaited(rank, step)
                {
                    self.message_of(task).awaited[usize::from(!task.op().is_send())] = true;
                }
            }
        }
    }

    /// Runs the wait for a transfer. Returns false if the transfer's end is not known yet.
    pub(super) fn wait_transfer(&mut self, rank: usize, wait: MicrobatchTask, start: MicrobatchTask) -> bool {
        if !self.lowered {
            return false;
        }
        let (message, over) = (*self.message_of(start), self.end_of(start));
        if message.arrived.is_nan() {
            return false;
        }
        if start.op().is_send() {
            self.stand(rank, wait.into(), over, over, IdleCause::Transfer);
            let (bytes, now) = (self.sent_bytes(start), self.ranks[rank].clock);
            self.ranks[rank].memory.change(now, MemoryKind::SendBuffers, -bytes);
        } else {
            self.stand(rank, wait.into(), message.made, over, IdleCause::of_value(is_forward(start)));
        }
        true
    }

    /// Idles until `made` for the given cause, then until `over` for the transfer.
    pub(super) fn stand(&mut self, rank: usize, task: Task, made: f64, over: f64, cause: IdleCause) {
        let state = &mut self.ranks[rank];
        let start = state.clock;
        state.idle_until(made, cause);
        state.idle_until(over, IdleCause::Transfer);
        self.events.push(Event { rank, action: task.into(), start, end: state.clock });
    }

    /// What a rank waits for if it cannot pass a wait: the start on this rank, or the peer's.
    pub(super) fn wait_blocked(&self, rank: usize, wait: Task) -> Option<Waiting> {
        let (step, start) = (self.ranks[rank].next, wait.awaits().unwrap_or(wait));
        let here = self.plan.row(rank)[..step].contains(&Action::Single(start));
        let (awaits, on) = match start.of_microbatch() {
            Some(transfer) if here => self.transfer_awaits(transfer),
            _ => (start, rank),
        };
        Some(Waiting { rank, step, action: wait.into(), needs: awaits, on })
    }
}
