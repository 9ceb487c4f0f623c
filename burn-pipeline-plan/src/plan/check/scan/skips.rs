//! Values along skip edges: each value that crosses ranks is sent once after it is computed and received once
//! before it is used, and so is its gradient. A wait comes once, after its start and before the use.

use super::refusals::{missing, refusal};
use super::state::{RECEIVED_B, RECEIVED_F, Refusal, SENT_B, SENT_F, Scan};
use crate::plan::check::channels::Part;
use crate::plan::edges::Skip;
use crate::plan::op::Op;
use crate::plan::task::{MicrobatchTask, Task};

impl Scan<'_> {
    /// Checks a send or receive along a skip edge, or the wait for one; `pair` is that of its own stage.
    pub(super) fn skip_transfer(&mut self, pair: usize, task: MicrobatchTask) -> Result<(), Refusal> {
        let (number, skip) = self.crossing_skip(task)?;
        let value = skip.base + task.microbatch();
        let (op, part) = match task.awaits() {
            Some(start) => {
                let event = self.end((self.skip_events[value], self.skip_waits[value]), pair, task, start)?;
                self.skip_waits[value] |= event;
                (start.op(), Part::Wait)
            }
            None => {
                let (event, part) = self.start(self.skip_events[value], pair, task)?;
                self.skip_events[value] |= event;
                (task.op(), part)
            }
        };
        self.transfers.push_skip(number, self.edges.pairs() + value, op, part);
        Ok(())
    }

    /// The skip edge of a task, with its index. It must cross ranks.
    fn crossing_skip(&self, task: MicrobatchTask) -> Result<(usize, Skip), Refusal> {
        let number = self.edges.find_skip(task.into());
        let skip = number.map(|n| (n, self.edges.skips()[n])).filter(|(_, skip)| skip.crosses);
        skip.ok_or_else(|| match number {
            Some(_) => self.needless(task),
            None => refusal!(self, NoSuchSkip),
        })
    }

    /// Uses the skip-edge inputs of a computation: the values for `F`, their gradients for a backward.
    #[inline]
    pub(super) fn use_skips(&mut self, slot: usize, task: MicrobatchTask) -> Result<(), Refusal> {
        if !self.lowered || self.edges.skips().is_empty() {
            return Ok(());
        }
        let (forward, microbatch) = (task.op() == Op::Forward, task.microbatch());
        let (event, op) = if forward { (RECEIVED_F, Op::ReceiveForward) } else { (RECEIVED_B, Op::ReceiveBackward) };
        for (_, skip) in self.edges.crossing_skips(slot, forward) {
            if self.skip_events[skip.base + microbatch] & event == 0 {
                let peer = self.edges.stage(if forward { skip.from } else { skip.to });
                let needs = Task::skip(task.stage(), op, microbatch, peer.index());
                let task = task.into();
                return Err(refusal!(self, Unmet { task, needs }));
            }
            self.row.held -= 1;
        }
        Ok(())
    }

    /// Refuses a value that crosses ranks but is not sent and received, or any other transfer.
    pub(super) fn refuse_incomplete_skips(&self) -> Result<(), Refusal> {
        for skip in self.edges.skips().iter().filter(|skip| skip.crosses && self.lowered) {
            let (from, to) = (self.edges.stage(skip.from), self.edges.stage(skip.to));
            let returns = self.training && from.index() >= self.plan.first_trained();
            let due = [
                (SENT_F, true, from, Op::SendForward, to),
                (RECEIVED_F, true, to, Op::ReceiveForward, from),
                (SENT_B, returns, to, Op::SendBackward, from),
                (RECEIVED_B, returns, from, Op::ReceiveBackward, to),
            ];
            for microbatch in 0..self.edges.slots()[skip.from].microbatches {
                let events = self.skip_events[skip.base + microbatch];
                let absent = due.iter().find(|(bit, owed, ..)| *owed && events & bit == 0);
                // A plan without backwards sends no gradient, so a received one lacks its `SEND_B`.
                let unsent = due.iter().filter(|_| !self.training && events & RECEIVED_B != 0).nth(2);
                if let Some(&(_, _, stage, op, peer)) = absent.or(unsent) {
                    let rank = self.plan.placement().rank_of(stage);
                    return Err(missing(self.plan, rank, Task::skip(stage, op, microbatch, peer.index())));
                }
            }
        }
        Ok(())
    }
}
