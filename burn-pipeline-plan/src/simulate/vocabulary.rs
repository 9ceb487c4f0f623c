//! A parallel vocabulary: its pieces, and the collectives of all ranks between them.
//!
//! 1. A rank starts a collective at its cell and goes on at once. The collective begins when the last rank has
//!    started it and the previous collective is over, since all ranks share one communicator. Tasks that use its
//!    result wait for its end.
//! 2. A piece keeps its rank busy like any computation.
//! 3. Memory: the output of a collective is held from its beginning until the computation that uses it ends. Its
//!    input (a part of the gradient or of the embedding) is held from the end of the piece until the collective is
//!    over. `S` keeps the head's activations until `T` ends; without backwards, until `S` ends.

use super::hold::Run;
use super::memory::MemoryKind;
use super::messages::Arrival;
use super::report::IdleCause;
use super::state::Engine;
use crate::plan::{MicrobatchTask, Op, Task};
use crate::trace::Event;

impl Engine<'_> {
    /// The time at which a task's input from a collective arrives, 0 if it needs none; or the task that it waits for,
    /// and that task's rank.
    pub(super) fn round_for(&self, task: MicrobatchTask) -> Result<Arrival, (Task, usize)> {
        let cause = IdleCause::of_value(matches!(task.op(), Op::Forward | Op::HeadForward));
        let Some(collective) = self.rounds.vocabulary.awaited(task) else {
            return Ok(Arrival { made: 0.0, sent: 0.0, arrived: 0.0, cause: IdleCause::Input });
        };
        let round = &self.rounds.rounds[self.rounds.vocabulary.number(collective)];
        if round.over.is_nan() {
            let absent = self.plan.first_without(collective.into(), |rank| self.ranks[rank].next);
            return Err((collective.into(), absent.unwrap_or(0)));
        }
        Ok(Arrival { made: round.last, sent: round.begun, arrived: round.over, cause })
    }

    /// The task that a blocked piece or collective waits for, and its rank.
    pub(super) fn vocabulary_awaits(&self, rank: usize, task: MicrobatchTask) -> Option<(Task, usize)> {
        match task.op().is_piece() {
            true => self.round_for(task).err(),
            false => self.not_given(rank, task).map(|given| (given.into(), rank)),
        }
    }

    /// The rank's input of a collective, if it has not been computed yet.
    fn not_given(&self, rank: usize, collective: MicrobatchTask) -> Option<MicrobatchTask> {
        let holds = self.plan.placement().rank_of(collective.stage()) == rank;
        let given = self.rounds.vocabulary.given(collective, holds)?;
        let at = self.at(given.stage(), given.microbatch());
        let done = match given.op() {
            Op::Forward => !self.outputs[at].is_nan(),
            Op::Backward => !self.gradients[at].is_nan(),
            _ => self.plan.row(rank)[..self.ranks[rank].next].iter().rev().any(|action| *action == given.into()),
        };
        (!done).then_some(given)
    }

    /// Starts a collective on a rank. Returns false if the rank's input has not been computed.
    pub(super) fn start_round(&mut self, rank: usize, task: MicrobatchTask) -> bool {
        if self.not_given(rank, task).is_some() {
            return false;
        }
        let (now, ranks) = (self.ranks[rank].clock, self.ranks.len());
        let number = self.rounds.vocabulary.number(task);
        let round = &mut self.rounds.rounds[number];
        round.started += 1;
        round.last = round.last.max(now);
        if round.started == ranks {
            let kind = task.op() as usize - Op::BroadcastHidden as usize;
            round.begun = round.last.max(self.rounds.free);
            round.over = round.begun + self.rounds.seconds[kind];
            self.rounds.free = round.over;
            let (start, end) = (round.begun, round.over);
            for rank in 0..ranks {
                self.events.push(Event { rank, action: task.into(), start, end });
                self.hold_round(rank, task, start, end);
                self.wake(rank);
            }
        }
        true
    }

    /// Runs a piece. Returns false if the collective before it is not over.
    pub(super) fn piece(&mut self, rank: usize, task: MicrobatchTask) -> bool {
        let Ok(arrival) = self.round_for(task) else { return false };
        let (pieces, training) = (self.costs.pieces(), self.training);
        let run = self.occupy(rank, task.into(), &[arrival], pieces.piece_seconds(task.op(), training));
        let Run { start, end, .. } = run;
        let memory = &mut self.ranks[rank].memory;
        match task.op() {
            Op::HeadForward => {
                memory.change(start, MemoryKind::Activations, pieces.head_activation_bytes);
                match training {
                    true => memory.change(end, MemoryKind::SendBuffers, pieces.hidden_bytes),
                    false => memory.change(end, MemoryKind::Activations, -pieces.head_activation_bytes),
                }
            }
            Op::HeadBackward => memory.change(end, MemoryKind::Activations, -pieces.head_activation_bytes),
            Op::EmbeddingForward => memory.change(end, MemoryKind::SendBuffers, pieces.embedded_bytes),
            _ => {}
        }
        if task.op() != Op::HeadBackward {
            self.release_round(rank, task, end);
        }
        true
    }

    /// Accounts for the output and the input of a collective on a rank.
    fn hold_round(&mut self, rank: usize, task: MicrobatchTask, start: f64, end: f64) {
        let (pieces, training) = (self.costs.pieces(), self.training);
        let holds = self.plan.placement().rank_of(task.stage()) == rank;
        let memory = &mut self.ranks[rank].memory;
        let (brings, takes) = match task.op() {
            Op::BroadcastHidden => (pieces.hidden_bytes, 0.0),
            Op::ReduceHead if training => (if holds { pieces.hidden_bytes } else { 0.0 }, pieces.hidden_bytes),
            Op::ReduceEmbedding => (if holds { pieces.embedded_bytes } else { 0.0 }, pieces.embedded_bytes),
            Op::BroadcastGradient => (pieces.embedded_bytes, 0.0),
            _ => (0.0, 0.0),
        };
        memory.change(start, MemoryKind::ReceiveBuffers, brings);
        memory.change(end, MemoryKind::SendBuffers, -takes);
    }

    /// Releases a collective's output after the computation that used it.
    pub(super) fn release_round(&mut self, rank: usize, task: MicrobatchTask, until: f64) {
        let Some(collective) = self.rounds.vocabulary.awaited(task) else { return };
        let pieces = self.costs.pieces();
        let bytes = match collective.op() {
            Op::BroadcastHidden | Op::ReduceHead => pieces.hidden_bytes,
            _ => pieces.embedded_bytes,
        };
        self.ranks[rank].memory.change(until, MemoryKind::ReceiveBuffers, -bytes);
    }
}
