//! Values that go past the next stage over skip edges, and when they reach the computation that uses them.
//!
//! 1. Their transfers are messages like any other, on the same channels; each has its own entry in the tables.
//! 2. `F` waits for all its inputs, and `I` and `B` for all gradients of their outputs. The rank idles for the value
//!    until the last one is made, and for the transfer until the last one arrives.
//! 3. A value occupies a receive buffer from the start of its transfer (or from when it was made, if it stays on the
//!    rank) until it is used.

use super::memory::MemoryKind;
use super::messages::Arrival;
use super::state::Engine;
use crate::plan::skips::ends;
use crate::plan::{MicrobatchTask, Op, StageId, Task};

impl Engine<'_> {
    /// The table entry of a transfer's message; `receiver` is the stage that receives it.
    pub(super) fn entry(&self, receiver: StageId, task: MicrobatchTask) -> usize {
        match task.skip_peer() {
            None => self.at(receiver, task.microbatch()),
            Some(peer) => self.skip_entry(task.stage(), peer, task.microbatch()),
        }
    }

    /// The table entry of a microbatch's value between two stages.
    pub(super) fn skip_entry(&self, one: StageId, other: StageId, microbatch: usize) -> usize {
        let edge = (one.index().min(other.index()), one.index().max(other.index())).into();
        let skips = self.plan.skips();
        let number = one.route() * skips.len() + skips.binary_search(&edge).unwrap_or(0);
        self.outputs.len() + number * self.stride + microbatch
    }

    /// The stages from which a computation takes values over skip edges.
    fn past(&self, task: MicrobatchTask) -> Vec<StageId> {
        let (stage, forward, skips) = (task.stage(), task.op() == Op::Forward, self.plan.skips());
        if skips.is_empty() || !forward && !self.plan.begins_backward(task) {
            return Vec::new();
        }
        let both = skips.iter().map(|&edge| ends(edge, stage.route()));
        let both = both.map(|(from, to)| if forward { (to, from) } else { (from, to) });
        both.filter(|(own, _)| *own == stage).map(|(_, other)| other).collect()
    }

    /// The times at which the last of all inputs (the neighbour's value and those over skip edges) is made and arrives.
    pub(super) fn with_skips(&self, task: MicrobatchTask, neighbour: Arrival) -> Result<Arrival, (Task, usize)> {
        let mut last = neighbour;
        for from in self.past(task) {
            let skip = self.value(task, from, true)?;
            last.made = last.made.max(skip.made);
            last.arrived = last.arrived.max(skip.arrived);
        }
        Ok(last)
    }

    /// Accounts for the receive buffers of values that came over skip edges.
    pub(super) fn hold_skips(&mut self, rank: usize, task: MicrobatchTask, until: f64) {
        let forward = task.op() == Op::Forward;
        for from in self.past(task) {
            let Ok(Arrival { sent, .. }) = self.value(task, from, true) else { continue };
            let bytes = self.costs.stage(if forward { from } else { task.stage() }).skip_bytes;
            let memory = &mut self.ranks[rank].memory;
            memory.change(sent, MemoryKind::ReceiveBuffers, bytes);
            memory.change(until, MemoryKind::ReceiveBuffers, -bytes);
        }
    }
}
