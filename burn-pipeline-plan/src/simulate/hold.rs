//! What a rank holds because of its computations: before, while and after they run; see [`super::memory`] for the rules.
//!
//! 1. The message that a computation uses is held from its transfer on: to the computation's start where the computation's
//!    peak is known, since the peak counts it, and to its end otherwise.
//! 2. Where the peak is known, it takes the place of what the microbatch held, and gives it back to what the computation
//!    leaves. Otherwise activations and gradients are added and freed one by one.

use super::memory::Held;
use super::messages::Arrival;
use super::state::Engine;
use crate::plan::{MicrobatchTask, Op};

/// A computation with its times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ran {
    pub(super) rank: usize,
    pub(super) start: f64,
    pub(super) end: f64,
}

impl Engine<'_> {
    /// Accounts for one computation, or two fused ones.
    pub(super) fn hold(&mut self, ran: Ran, tasks: &[MicrobatchTask], needs: &[Arrival]) {
        for (&task, need) in tasks.iter().zip(needs) {
            self.hold_message(ran, task, *need);
        }
        tasks.iter().for_each(|&task| self.hold_while(ran, task));
        tasks.iter().for_each(|&task| self.hold_after(ran, task));
    }

    /// The most bytes of a computation, where that is known. Without backwards nothing is kept, so they do not hold.
    fn peak_of(&self, task: MicrobatchTask) -> Option<f64> {
        self.costs.stage(task.stage()).peak_bytes(task.op()).filter(|_| self.training)
    }

    /// The end of what a computation received, as an account of its own.
    pub(super) fn used_up(&self, ran: Ran, task: MicrobatchTask) -> f64 {
        if self.peak_of(task).is_some() { ran.start } else { ran.end }
    }

    fn hold_message(&mut self, ran: Ran, task: MicrobatchTask, need: Arrival) {
        let (stage, placement) = (task.stage(), self.plan.placement());
        let message = match task.op() {
            Op::Forward => stage.previous(),
            Op::BackwardInput | Op::Backward => placement.next(stage).map(|_| stage),
            _ => None,
        };
        let until = self.used_up(ran, task);
        if let Some(message) = message {
            let bytes = self.costs.stage(message).message_bytes;
            let memory = &mut self.ranks[ran.rank].memory;
            memory.change(need.sent, Held::ReceiveBuffers, bytes);
            memory.change(until, Held::ReceiveBuffers, -bytes);
        }
        self.hold_skips(ran.rank, task, until);
        self.release_round(ran.rank, task, until);
    }

    /// What the microbatch of a computation holds before it.
    fn held_before(&self, task: MicrobatchTask) -> f64 {
        let cost = self.costs.stage(task.stage());
        match task.op() {
            Op::BackwardInput | Op::Backward => cost.activation_bytes,
            Op::BackwardWeight => cost.activation_bytes + cost.recomputed_bytes - cost.freed_at_input_bytes,
            _ => 0.0,
        }
    }

    fn hold_while(&mut self, ran: Ran, task: MicrobatchTask) {
        let (cost, before) = (*self.costs.stage(task.stage()), self.held_before(task));
        let (peak, summed) = (self.peak_of(task), self.summed[self.plan.placement().slot(task.stage())]);
        let (op, training) = (task.op(), self.training);
        let memory = &mut self.ranks[ran.rank].memory;
        if op == Op::Forward {
            memory.activate();
        }
        if let Some(peak) = peak {
            memory.change(ran.start, Held::Activations, -before);
            memory.change(ran.start, Held::Running, peak);
            return memory.change(ran.end, Held::Running, -peak);
        }
        match op {
            Op::Forward => {
                memory.change(ran.start, Held::Activations, cost.activation_bytes);
                // Without backwards nothing is kept, so nothing is recomputed.
                if training {
                    memory.change(ran.start, Held::Activations, cost.recomputed_bytes);
                    memory.change(ran.end, Held::Activations, -cost.recomputed_bytes);
                }
            }
            _ if op.gives_input_gradient() => memory.change(ran.start, Held::Activations, cost.recomputed_bytes),
            _ => {}
        }
        if op.gives_weight_gradient() && summed {
            memory.change(ran.start, Held::Gradients, cost.gradient_bytes);
            memory.change(ran.end, Held::Gradients, -cost.gradient_bytes);
        }
    }

    fn hold_after(&mut self, ran: Ran, task: MicrobatchTask) {
        let cost = *self.costs.stage(task.stage());
        let (known, slot) = (self.peak_of(task).is_some(), self.plan.placement().slot(task.stage()));
        let all = cost.activation_bytes + cost.recomputed_bytes;
        let memory = &mut self.ranks[ran.rank].memory;
        // With a peak, what is left is added; without one, what is not left is taken away.
        let (left, gone, over) = match task.op() {
            Op::Forward if self.training => (cost.activation_bytes, 0.0, false),
            Op::Forward => (0.0, cost.activation_bytes, true),
            Op::BackwardInput => (all - cost.freed_at_input_bytes, cost.freed_at_input_bytes, false),
            Op::BackwardWeight => (0.0, all - cost.freed_at_input_bytes, true),
            _ => (0.0, all, true),
        };
        memory.change(ran.end, Held::Activations, if known { left } else { -gone });
        if over {
            memory.release();
        }
        if task.op().gives_weight_gradient() && !std::mem::replace(&mut self.summed[slot], true) {
            memory.change(if known { ran.end } else { ran.start }, Held::Gradients, cost.gradient_bytes);
        }
    }
}
