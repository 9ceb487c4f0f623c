//! Waits: each after the one start that it is for, once, and before anything uses what it waits for.

use super::super::error::CheckError;
use super::{F, I, RECEIVED_B, RECEIVED_F, Reduction, Refusal, SENT_B, SENT_F, Scan};
use crate::plan::edges::Slot;
use crate::plan::{MicrobatchTask, Op, Task};

use super::super::channels::Part;

impl Scan<'_> {
    /// The wait for a send or a receive.
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

    pub(super) fn wait_unshard(&mut self, slot: usize, task: Task) -> Result<(), Refusal> {
        let shard = self.shards[slot];
        if !shard.gathered {
            return Err(self.unstarted(task, Op::Unshard));
        }
        self.refuse_twice(u8::from(shard.awaited), task)?;
        if shard.used {
            return Err(self.late_wait(task, self.last_use(task)));
        }
        self.shards[slot].awaited = true;
        Ok(())
    }

    pub(super) fn wait_reduction(&mut self, slot: usize, task: Task) -> Result<(), Refusal> {
        match self.reduced[slot] {
            Reduction::No => Err(self.unstarted(task, Op::ReduceGrad)),
            Reduction::Awaited => Err(self.duplicate(task)),
            Reduction::Started => {
                self.reduced[slot] = Reduction::Awaited;
                Ok(())
            }
        }
    }

    /// A payload is sent and not awaited yet: it may not be let go of.
    pub(super) fn hold_sent(&mut self) -> Result<(), Refusal> {
        self.row.sent += 1;
        let held = self.row.sent;
        match self.options.sent_cap {
            Some(cap) if held > cap => {
                Err(self.refuse(|rank, step, action, grid| CheckError::SentCap { rank, step, action, held, cap, grid }))
            }
            _ => Ok(()),
        }
    }
}
