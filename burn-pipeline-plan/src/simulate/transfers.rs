//! Sends and receives of a lowered plan under a transport.
//!
//! 1. A send posts its message on the channel from its rank to the receiver's; a receive posts that it is ready. The
//!    messages of a channel run one after the other, in the order of their sends.
//! 2. A message may start: under rendezvous, once its receive is posted; with a buffer of `k`, once the message `k`
//!    before it was taken; unbounded, at once. It occupies the link for bytes over bandwidth and arrives a latency
//!    later.
//! 3. Without overlap, the transfer blocks its rank. A receive lasts until the arrival. A send lasts until the arrival
//!    under rendezvous, and until the last byte has left with buffers.
//! 4. With overlap, both ranks go on at once, and the computation that needs the message waits for it.
//! 5. A transfer with a wait never blocks its rank; the rank stops at the wait ([`super::waits`]).

use super::memory::MemoryKind;
use super::messages::{Message, NEVER, Posted, is_forward, other_end};
use super::report::IdleCause;
use super::state::Engine;
use crate::plan::{MicrobatchTask, Op, StageId, Task, Transport};
use crate::trace::Event;

impl Engine<'_> {
    /// The stage at the other end of a transfer.
    pub(super) fn peer(&self, task: MicrobatchTask) -> StageId {
        other_end(task).stage()
    }

    /// The message of a send or a receive.
    pub(super) fn message_of(&mut self, task: MicrobatchTask) -> &mut Message {
        let receiver = if task.op().is_send() { self.peer(task) } else { task.stage() };
        let at = self.entry(receiver, task);
        self.transfers.message(at, is_forward(task))
    }

    /// The time at which the value of a send was made.
    fn value_of(&self, send: MicrobatchTask) -> f64 {
        let at = self.at(send.stage(), send.microbatch());
        if is_forward(send) { self.outputs[at] } else { self.gradients[at] }
    }

    /// Runs a send or a receive. Returns false if the rank has to wait.
    pub(super) fn transfer(&mut self, rank: usize, task: MicrobatchTask) -> bool {
        if !self.ranks[rank].posted && !self.post(rank, task) {
            return false;
        }
        let (message, over) = (*self.message_of(task), self.end_of(task));
        if !self.runs_beside(rank) {
            if message.arrived.is_nan() {
                return false;
            }
            let state = &mut self.ranks[rank];
            if !task.op().is_send() {
                state.idle_until(message.made, IdleCause::of_value(is_forward(task)));
            }
            state.idle_until(message.sent, IdleCause::Transfer);
            let start = state.clock;
            state.clock = start.max(over);
            self.events.push(Event { rank, action: task.into(), start, end: self.ranks[rank].clock });
        }
        self.ranks[rank].posted = false;
        true
    }

    /// Posts a rank's end of a transfer. Returns false if the value of a send has not been made.
    fn post(&mut self, rank: usize, task: MicrobatchTask) -> bool {
        let (at, peer) = (self.ranks[rank].clock, self.plan.placement().rank_of(self.peer(task)));
        let channel = if task.op().is_send() { (rank, peer) } else { (peer, rank) };
        if task.op().is_send() {
            if self.value_of(task).is_nan() {
                return false;
            }
            self.transfers.channels.entry(channel).or_default().messages.push(Posted { send: task, at });
            if self.is_awaited(rank, self.ranks[rank].next) {
                let bytes = self.sent_bytes(task);
                self.ranks[rank].memory.change(at, MemoryKind::SendBuffers, bytes);
            }
        } else {
            self.message_of(task).wanted = at;
        }
        self.ranks[rank].posted = true;
        self.start_messages(channel);
        true
    }

    /// The time at which a send or a receive is over: when the message has arrived, or for a send with buffers, when
    /// its last byte has left.
    pub(super) fn end_of(&mut self, task: MicrobatchTask) -> f64 {
        let rendezvous = matches!(self.options.transport, Transport::Rendezvous | Transport::Buffered(0));
        let message = self.message_of(task);
        if rendezvous || !task.op().is_send() { message.arrived } else { message.left }
    }

    /// Starts every message of a channel that may start.
    fn start_messages(&mut self, (from, to): (usize, usize)) {
        loop {
            let Some(channel) = self.transfers.channels.get(&(from, to)) else { return };
            let Some(&Posted { send, at }) = channel.messages.get(channel.started) else { return };
            let (number, free) = (channel.started, channel.free);
            let gate = self.gate((from, to), number, send);
            if gate.is_nan() {
                return;
            }
            let start = at.max(gate).max(free);
            let link = self.costs.link(from, to);
            let left = start + link.occupied(self.sent_bytes(send));
            let arrived = left + link.latency;
            let before = *self.message_of(send);
            let made = self.value_of(send);
            *self.message_of(send) = Message { made, sent: start, left, arrived, ..before };
            if let Some(channel) = self.transfers.channels.get_mut(&(from, to)) {
                channel.started += 1;
                channel.free = left;
            }
            if self.options.overlap || before.awaited[0] {
                self.events.push(Event { rank: from, action: send.into(), start, end: arrived });
            }
            if self.options.overlap || before.awaited[1] {
                self.events.push(Event { rank: to, action: other_end(send).into(), start, end: arrived });
            }
            self.wake(from);
            self.wake(to);
        }
    }

    /// The bytes of a send's message.
    pub(super) fn sent_bytes(&self, send: MicrobatchTask) -> f64 {
        let output_of = if is_forward(send) { send.stage() } else { self.peer(send) };
        let cost = self.costs.stage(output_of);
        if send.is_skip() { cost.skip_bytes } else { cost.message_bytes }
    }

    /// The time at which the transport lets message `number` of a channel start; NaN while unknown.
    fn gate(&mut self, channel: (usize, usize), number: usize, send: MicrobatchTask) -> f64 {
        match self.options.transport {
            Transport::Rendezvous | Transport::Buffered(0) => self.message_of(send).wanted,
            Transport::Buffered(room) if number >= room => {
                let earlier = self.transfers.channels[&channel].messages[number - room].send;
                let Message { wanted, arrived, .. } = *self.message_of(earlier);
                // `max` would ignore a NaN and return the known time.
                if wanted.is_nan() { NEVER } else { wanted.max(arrived) }
            }
            Transport::Buffered(_) | Transport::Unbounded => 0.0,
        }
    }

    /// The task that a blocked transfer waits for, and its rank.
    pub(super) fn transfer_awaits(&self, task: MicrobatchTask) -> (Task, usize) {
        let rank_of = |stage| self.plan.placement().rank_of(stage);
        if task.op().is_send() && self.value_of(task).is_nan() {
            let maker = if is_forward(task) { Op::Forward } else { Op::Backward };
            return (task.with(task.stage(), maker).into(), rank_of(task.stage()));
        }
        (other_end(task), rank_of(self.peer(task)))
    }
}
