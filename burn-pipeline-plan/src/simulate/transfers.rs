//! Sends and receives of a lowered plan, under a transport.
//!
//! 1. A send posts its message on the channel from its rank to the receiver's; a receive posts its wish. Messages of
//!    a channel go one after the other, in the order of their sends.
//! 2. When a message may start: under rendezvous once its receive is posted; with a buffer of `k` once the message
//!    `k` before it was taken; unbounded at once. It occupies the link for bytes over bandwidth and arrives a latency
//!    later.
//! 3. Without overlap, a rank does nothing else meanwhile: a receive lasts until the arrival; a send lasts until the
//!    arrival under rendezvous, and until the last byte has left with buffers. With overlap both ranks go on at once,
//!    and the computation that needs the message waits for it. The same holds for `UNSHARD` and `REDUCE_GRAD`,
//!    which then have a lane of their own. Where an end has a wait of its own, it goes on at once in either case, and
//!    stands at the wait ([`super::waits`]).

use super::engine::{Arrival, Engine, NEVER};
use super::memory::Held;
use super::report::IdleCause;
use super::skips::other_end;
use crate::plan::{MicrobatchTask, Op, StageId, Task, Transport};
use crate::trace::Event;
use std::collections::HashMap;

/// The times of one message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    /// When its receive was posted.
    pub(super) wanted: f64,
    /// When its transfer started.
    pub(super) sent: f64,
    /// When its last byte left.
    pub(super) left: f64,
    /// When it was there.
    pub(super) arrived: f64,
    /// Have the two ends waits of their own: the sender, the receiver?
    pub(super) awaited: [bool; 2],
}

const NO_MESSAGE: Message = Message { wanted: NEVER, sent: NEVER, left: NEVER, arrived: NEVER, awaited: [false; 2] };

/// A message posted on a channel.
#[derive(Clone, Copy, Debug)]
struct Posted {
    send: MicrobatchTask,
    at: f64,
}

/// What goes from one rank to another.
#[derive(Clone, Debug, Default)]
struct Channel {
    messages: Vec<Posted>,
    /// How many of them have started.
    started: usize,
    /// When the link is free.
    free: f64,
}

/// All messages and channels of a simulation.
#[derive(Clone, Debug)]
pub(super) struct Transfers {
    inputs: Vec<Message>,
    gradients: Vec<Message>,
    channels: HashMap<(usize, usize), Channel>,
}

impl Transfers {
    pub(super) fn new(entries: usize) -> Self {
        Self { inputs: vec![NO_MESSAGE; entries], gradients: vec![NO_MESSAGE; entries], channels: HashMap::new() }
    }

    /// The arrival of the message that a stage's computation uses.
    pub(super) fn arrival(&self, at: usize, forward: bool) -> Option<Arrival> {
        let message = if forward { self.inputs[at] } else { self.gradients[at] };
        let cause = if forward { IdleCause::Input } else { IdleCause::Gradient };
        (!message.arrived.is_nan()).then_some(Arrival { sent: message.sent, arrived: message.arrived, cause })
    }

    fn message(&mut self, at: usize, forward: bool) -> &mut Message {
        if forward { &mut self.inputs[at] } else { &mut self.gradients[at] }
    }
}

pub(super) fn is_forward(task: MicrobatchTask) -> bool {
    matches!(task.op(), Op::SendForward | Op::ReceiveForward)
}

pub(super) fn is_send(task: MicrobatchTask) -> bool {
    matches!(task.op(), Op::SendForward | Op::SendBackward)
}

impl Engine<'_> {
    /// The stage at the other end of a transfer; validation made sure that there is one.
    pub(super) fn peer(&self, task: MicrobatchTask) -> StageId {
        let stage = task.stage();
        if let Some(peer) = task.skip_peer() {
            return peer;
        }
        let peer = match task.op() {
            Op::SendForward | Op::ReceiveBackward => self.plan.placement().next(stage),
            _ => stage.previous(),
        };
        peer.unwrap_or(stage)
    }

    /// The message that a send or a receive is about.
    pub(super) fn message_of(&mut self, task: MicrobatchTask) -> &mut Message {
        let receiver = if is_send(task) { self.peer(task) } else { task.stage() };
        let at = self.entry(receiver, task);
        self.transfers.message(at, is_forward(task))
    }

    fn value_of(&self, send: MicrobatchTask) -> f64 {
        let at = self.at(send.stage(), send.microbatch());
        if is_forward(send) { self.outputs[at] } else { self.gradients[at] }
    }

    pub(super) fn send(&mut self, rank: usize, task: MicrobatchTask) -> bool {
        if self.value_of(task).is_nan() {
            return false;
        }
        let channel = (rank, self.plan.placement().rank_of(self.peer(task)));
        if !self.ranks[rank].posted {
            let at = self.ranks[rank].clock;
            self.transfers.channels.entry(channel).or_default().messages.push(Posted { send: task, at });
            self.ranks[rank].posted = true;
            if self.is_awaited(rank, self.ranks[rank].next) {
                let bytes = self.sent_bytes(task);
                self.ranks[rank].memory.change(at, Held::SendBuffers, bytes);
            }
            self.start_messages(channel);
        }
        let (rendezvous, message) = (self.rendezvous(), *self.message_of(task));
        if !self.runs_beside(rank) {
            if message.arrived.is_nan() {
                return false;
            }
            let state = &mut self.ranks[rank];
            state.idle_until(message.sent, IdleCause::Transfer);
            let (start, end) = (state.clock, if rendezvous { message.arrived } else { message.left });
            state.clock = end;
            self.events.push(Event { rank, action: task.into(), start, end });
        }
        self.ranks[rank].posted = false;
        true
    }

    pub(super) fn receive(&mut self, rank: usize, task: MicrobatchTask) -> bool {
        let channel = (self.plan.placement().rank_of(self.peer(task)), rank);
        if !self.ranks[rank].posted {
            self.message_of(task).wanted = self.ranks[rank].clock;
            self.ranks[rank].posted = true;
            self.start_messages(channel);
        }
        let message = *self.message_of(task);
        if !self.runs_beside(rank) {
            if message.arrived.is_nan() {
                return false;
            }
            let cause = if is_forward(task) { IdleCause::Input } else { IdleCause::Gradient };
            let state = &mut self.ranks[rank];
            state.idle_until(message.sent, cause);
            let start = state.clock;
            state.clock = start.max(message.arrived);
            self.events.push(Event { rank, action: task.into(), start, end: self.ranks[rank].clock });
        }
        self.ranks[rank].posted = false;
        true
    }

    pub(super) fn rendezvous(&self) -> bool {
        matches!(self.options.transport, Transport::Rendezvous | Transport::Buffered(0))
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
            *self.message_of(send) = Message { sent: start, left, arrived, ..before };
            if let Some(channel) = self.transfers.channels.get_mut(&(from, to)) {
                channel.started += 1;
                channel.free = left;
            }
            if self.options.overlap || before.awaited[0] {
                self.events.push(Event { rank: from, action: send.into(), start, end: arrived });
            }
            if self.options.overlap || before.awaited[1] {
                let receive = if is_forward(send) { Op::ReceiveForward } else { Op::ReceiveBackward };
                let receive = other_end(send, receive, self.peer(send));
                self.events.push(Event { rank: to, action: receive.into(), start, end: arrived });
            }
            self.wake(from);
            self.wake(to);
        }
    }

    /// Bytes of the message that a send hands over.
    pub(super) fn sent_bytes(&self, send: MicrobatchTask) -> f64 {
        let output_of = if is_forward(send) { send.stage() } else { self.peer(send) };
        if send.is_skip() { self.costs.skip_bytes(output_of) } else { self.costs.message_bytes(output_of) }
    }

    /// From when on the transport lets message `number` of a channel start; not a number while that is open.
    fn gate(&mut self, channel: (usize, usize), number: usize, send: MicrobatchTask) -> f64 {
        match self.options.transport {
            Transport::Rendezvous | Transport::Buffered(0) => self.message_of(send).wanted,
            Transport::Buffered(room) if number >= room => {
                let earlier = self.transfers.channels[&channel].messages[number - room].send;
                let Message { wanted, arrived, .. } = *self.message_of(earlier);
                // Not `max` alone: that would take the other for a time that is not known.
                if wanted.is_nan() { NEVER } else { wanted.max(arrived) }
            }
            Transport::Buffered(_) | Transport::Unbounded => 0.0,
        }
    }

    /// Runs `UNSHARD`, `RESHARD` or `REDUCE_GRAD`.
    pub(super) fn collective(&mut self, rank: usize, task: Task) {
        let (stage, seconds) = (task.stage(), self.costs.task_seconds(task));
        let (slot, bytes) = (self.plan.placement().slot(stage), self.costs.stage(stage).unsharded_bytes);
        let aside = self.runs_beside(rank) && task.op() != Op::Reshard;
        let state = &mut self.ranks[rank];
        let start = if aside { state.clock.max(state.lane) } else { state.clock };
        let end = start + seconds;
        *(if aside { &mut state.lane } else { &mut state.clock }) = end;
        match (task.op(), self.unsharded[slot]) {
            (Op::Unshard, None) => {
                state.memory.change(start, Held::Unsharded, bytes);
                self.unsharded[slot] = Some(end);
            }
            (Op::Reshard, Some(_)) => {
                state.memory.change(start, Held::Unsharded, -bytes);
                self.unsharded[slot] = None;
            }
            (Op::ReduceGrad, _) => {
                let cost = self.costs.stage(stage);
                let kept = cost.reduced_gradient_bytes.unwrap_or(cost.gradient_bytes);
                state.memory.change(end, Held::Gradients, kept - cost.gradient_bytes);
                self.reduced[slot] = Some(end);
            }
            _ => {}
        }
        self.events.push(Event { rank, action: task.into(), start, end });
    }

    /// What a transfer that cannot go on waits for, and on which rank.
    pub(super) fn transfer_awaits(&self, task: MicrobatchTask) -> (Task, usize) {
        let peer = self.peer(task);
        let rank_of = |stage| self.plan.placement().rank_of(stage);
        let (own, other) = match task.op() {
            Op::SendForward => (Some(Op::Forward), Op::ReceiveForward),
            Op::SendBackward => (Some(Op::Backward), Op::ReceiveBackward),
            Op::ReceiveForward => (None, Op::SendForward),
            _ => (None, Op::SendBackward),
        };
        match own {
            Some(op) if self.value_of(task).is_nan() => (task.with(task.stage(), op).into(), rank_of(task.stage())),
            _ => (other_end(task, other, peer), rank_of(peer)),
        }
    }
}
