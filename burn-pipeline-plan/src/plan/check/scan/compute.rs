//! Computations: each once, in one form, after its inputs on its own rank.

use super::refusals::refusal;
use super::state::{F, I, RECEIVED_B, RECEIVED_F, Refusal, Scan, W, WHOLE};
use crate::plan::edges::{Side, Slot};
use crate::plan::op::Op;
use crate::plan::task::MicrobatchTask;

impl Scan<'_> {
    #[inline]
    pub(super) fn compute(&mut self, slot: usize, at: Slot, pair: usize, task: MicrobatchTask) -> Result<(), Refusal> {
        let events = self.events[pair];
        if task.op().is_backward() && !self.has_backward(task) {
            return Err(self.unused_gradient(task));
        }
        self.refuse_again(events, task)?;
        self.shards[slot].bare |= !self.shards[slot].gathered;
        self.shards[slot].used = true;
        if self.shards[slot].managed && !self.shards[slot].gathered {
            return Err(self.sharded(task.into()));
        }
        match task.op() {
            Op::Forward => {
                match at.before {
                    Side::SameRank => self.require(self.events[pair - at.microbatches] & F, task, Op::Forward, -1)?,
                    Side::OtherRank if self.lowered => {
                        self.require(events & RECEIVED_F, task, Op::ReceiveForward, 0)?;
                        self.row.held -= 1;
                    }
                    _ => {}
                }
                self.use_skips(slot, task)?;
                self.use_collective(task)?;
                self.events[pair] |= F;
                if self.training && task.stage().index() >= self.plan.first_trained() {
                    self.hold_activation()?;
                }
            }
            Op::BackwardWeight if !self.plan.begins_backward(task) => {
                self.require(events & I, task, Op::BackwardInput, 0)?;
                self.events[pair] |= W;
                self.release(slot);
            }
            _ => return self.backward(slot, at, pair, task),
        }
        Ok(())
    }

    /// Runs a `B` or `I`, or a `W` that is the whole backward.
    #[inline]
    fn backward(&mut self, slot: usize, at: Slot, pair: usize, task: MicrobatchTask) -> Result<(), Refusal> {
        let events = self.events[pair];
        self.require(events & F, task, Op::Forward, 0)?;
        match at.after {
            Side::SameRank => self.require(self.events[pair + at.microbatches] & I, task, Op::Backward, 1)?,
            Side::OtherRank if self.lowered => {
                self.require(events & RECEIVED_B, task, Op::ReceiveBackward, 0)?;
                self.row.held -= 1;
            }
            _ => {}
        }
        self.use_skips(slot, task)?;
        self.use_collective(task)?;
        if task.op() != Op::BackwardInput {
            self.events[pair] |= I | W | WHOLE;
            self.release(slot);
        } else {
            self.events[pair] |= I;
        }
        Ok(())
    }

    /// Returns true if the stage has this backward: none before the first stage that trains, and `W` there.
    #[inline]
    fn has_backward(&self, task: MicrobatchTask) -> bool {
        let alone = self.plan.trains_alone(task.stage());
        self.plan.gives_gradients(task.stage())
            || self.plan.first_trained() == 0
            || alone && task.op() == Op::BackwardWeight
    }

    /// Refuses a repeated computation, and a backward that is both whole and split.
    #[inline]
    fn refuse_again(&self, events: u8, task: MicrobatchTask) -> Result<(), Refusal> {
        match task.op() {
            Op::Forward => self.refuse_twice(events & F, task),
            Op::Backward if events & (I | WHOLE) == I => Err(self.both_backwards(task, Op::BackwardInput)),
            Op::Backward => self.refuse_twice(events & WHOLE, task),
            Op::BackwardWeight if self.plan.begins_backward(task) => self.refuse_twice(events & W, task),
            _ if events & WHOLE != 0 => Err(self.both_backwards(task, Op::Backward)),
            Op::BackwardInput => self.refuse_twice(events & I, task),
            _ => self.refuse_twice(events & W, task),
        }
    }

    #[inline]
    fn hold_activation(&mut self) -> Result<(), Refusal> {
        self.row.live += 1;
        let Some(cap) = self.options.activation_cap else { return Ok(()) };
        let live = self.row.live as f64 * (self.plan.ranks() as f64 / self.plan.stages() as f64);
        if live > cap {
            return Err(refusal!(self, ActivationCap { live, cap }));
        }
        Ok(())
    }

    /// Frees the activation of a computed weight gradient.
    #[inline]
    pub(super) fn release(&mut self, slot: usize) {
        self.row.live -= 1;
        self.weights[slot] += 1;
    }
}
