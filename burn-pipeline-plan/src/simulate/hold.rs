//! The memory that a rank's computations hold before, while and after they run, by the rules of [`super::memory`].
//!
//! A known peak includes the message that the computation uses, so the message counts separately only until the
//! computation starts. Without a known peak, activations and gradients are added and freed one by one.

use super::memory::MemoryKind;
use super::messages::Arrival;
use super::state::Engine;
use crate::plan::{MicrobatchTask, Op};

/// One run of a computation, with its times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) rank: usize,
    pub(super) start: f64,
    pub(super) end: f64,
}

impl Engine<'_> {
    /// Accounts for one computation, or two fused ones.
    pub(super) fn hold(&mut self, run: Run, tasks: &[MicrobatchTask], needs: &[Arrival]) {
        for (&task, need) in tasks.iter().zip(needs) {
            self.hold_message(run, task, *need);
        }
        tasks.iter().for_each(|&task| self.hold_while(run, task));
        tasks.iter().for_each(|&task| self.hold_after(run, task));
    }

    /// The operation whose memory rules apply to a computation.
    fn rules(&self, task: MicrobatchTask) -> Op {
        match task.op() {
            Op::BackwardWeight if self.plan.begins_backward(task) => Op::Backward,
            op => op,
        }
    }

    /// Returns true if a stage keeps activations for a backward.
    fn keeps(&self, task: MicrobatchTask) -> bool {
        self.training && task.stage().index() >= self.plan.first_trained()
    }

    /// The peak bytes of a computation, if known. Without backwards nothing is kept, so measured peaks do not apply.
    fn peak_of(&self, task: MicrobatchTask) -> Option<f64> {
        self.costs.stage(task.stage()).peak_bytes(self.rules(task)).filter(|_| self.training)
    }

    /// The time until which a computation's received values count separately.
    pub(super) fn used_up(&self, run: Run, task: MicrobatchTask) -> f64 {
        if self.peak_of(task).is_some() { run.start } else { run.end }
    }

    fn hold_message(&mut self, run: Run, task: MicrobatchTask, need: Arrival) {
        let (stage, placement) = (task.stage(), self.plan.placement());
        let message = match self.rules(task) {
            Op::Forward => stage.previous(),
            Op::BackwardInput | Op::Backward => placement.next(stage).map(|_| stage),
            _ => None,
        };
        let until = self.used_up(run, task);
        if let Some(message) = message {
            let bytes = self.costs.stage(message).message_bytes;
            let memory = &mut self.ranks[run.rank].memory;
            memory.change(need.sent, MemoryKind::ReceiveBuffers, bytes);
            memory.change(until, MemoryKind::ReceiveBuffers, -bytes);
        }
        self.hold_skips(run.rank, task, until);
        self.release_round(run.rank, task, until);
    }

    /// The bytes that a computation's microbatch holds before it.
    fn held_before(&self, task: MicrobatchTask) -> f64 {
        let cost = self.costs.stage(task.stage());
        match self.rules(task) {
            Op::BackwardInput | Op::Backward => cost.activation_bytes,
            Op::BackwardWeight => cost.activation_bytes + cost.recomputed_bytes - cost.freed_at_input_bytes,
            _ => 0.0,
        }
    }

    fn hold_while(&mut self, run: Run, task: MicrobatchTask) {
        let (cost, before) = (*self.costs.stage(task.stage()), self.held_before(task));
        let (peak, summed) = (self.peak_of(task), self.summed[self.plan.placement().slot(task.stage())]);
        let (op, keeps) = (self.rules(task), self.keeps(task));
        let memory = &mut self.ranks[run.rank].memory;
        if op == Op::Forward {
            memory.activate();
        }
        if let Some(peak) = peak {
            memory.change(run.start, MemoryKind::Activations, -before);
            memory.change(run.start, MemoryKind::Running, peak);
            return memory.change(run.end, MemoryKind::Running, -peak);
        }
        match op {
            Op::Forward => {
                memory.change(run.start, MemoryKind::Activations, cost.activation_bytes);
                // Without a backward nothing is kept, so nothing is recomputed.
                if keeps {
                    memory.change(run.start, MemoryKind::Activations, cost.recomputed_bytes);
                    memory.change(run.end, MemoryKind::Activations, -cost.recomputed_bytes);
                }
            }
            _ if op.gives_input_gradient() => memory.change(run.start, MemoryKind::Activations, cost.recomputed_bytes),
            _ => {}
        }
        if op.gives_weight_gradient() && summed {
            memory.change(run.start, MemoryKind::Gradients, cost.gradient_bytes);
            memory.change(run.end, MemoryKind::Gradients, -cost.gradient_bytes);
        }
    }

    fn hold_after(&mut self, run: Run, task: MicrobatchTask) {
        let cost = *self.costs.stage(task.stage());
        let (known, slot) = (self.peak_of(task).is_some(), self.plan.placement().slot(task.stage()));
        let all = cost.activation_bytes + cost.recomputed_bytes;
        let (op, keeps) = (self.rules(task), self.keeps(task));
        let memory = &mut self.ranks[run.rank].memory;
        // With a known peak, the bytes that stay are added; without one, the freed bytes are subtracted.
        let (left, gone, over) = match op {
            Op::Forward if keeps => (cost.activation_bytes, 0.0, false),
            Op::Forward => (0.0, cost.activation_bytes, true),
            Op::BackwardInput => (all - cost.freed_at_input_bytes, cost.freed_at_input_bytes, false),
            Op::BackwardWeight => (0.0, all - cost.freed_at_input_bytes, true),
            _ => (0.0, all, true),
        };
        memory.change(run.end, MemoryKind::Activations, if known { left } else { -gone });
        if over {
            memory.release();
        }
        if task.op().gives_weight_gradient() && !std::mem::replace(&mut self.summed[slot], true) {
            memory.change(if known { run.end } else { run.start }, MemoryKind::Gradients, cost.gradient_bytes);
        }
    }
}
