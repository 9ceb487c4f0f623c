//! A vocabulary that is spread over all ranks: its pieces, and the collectives of all ranks between them.
//!
//! 1. A rank starts a collective at its cell, and goes on at once. When the last rank has started it, it begins, as soon as the
//!    collective before it is over: all ranks share one communicator. What uses it waits for its end.
//! 2. A piece keeps its rank busy like any computation.
//! 3. Memory: what a collective brings is held from its beginning until the computation that uses it ends; what it takes (a
//!    part of the gradient, a part of the embedding) from the piece's end until the collective is over. `S` keeps the head's
//!    activations until `T` ends; without backwards, until it ends itself.

use super::hold::Ran;
use super::memory::Held;
use super::messages::Arrival;
use super::report::IdleCause;
use super::state::Engine;
use crate::plan::{MicrobatchTask, Op, Task};
use crate::trace::Event;

impl Engine<'_> {
    /// When what a task needs from a collective arrives, at once if it needs none; or the task that it waits for, and where.
    pub(super) fn round_for(&self, task: MicrobatchTask) -> Result<Arrival, (Task, usize)> {
        let cause = IdleCause::of_value(matches!(task.op(), Op::Forward | Op::HeadForward));
        let Some(collective) = self.rounds.spread.awaited(task) else {
            return Ok(Arrival { made: 0.0, sent: 0.0, arrived: 0.0, cause: IdleCause::Input });
        };
        let round = &self.rounds.rounds[self.rounds.spread.number(collective)];
        if round.over.is_nan() {
            return Err((collective.into(), self.absent_from(collective)));
        }
        Ok(Arrival { made: round.last, sent: round.begun, arrived: round.over, cause })
    }

    /// The first rank that has not started a collective. Called for deadlocks only.
    fn absent_from(&self, collective: MicrobatchTask) -> usize {
        let begun = |rank: usize| {
            let done = &self.plan.row(rank)[..self.ranks[rank].next];
            done.iter().flat_map(|action| action.tasks()).any(|task| task == collective.into())
        };
        (0..self.ranks.len()).find(|&rank| !begun(rank)).unwrap_or(0)
    }

    /// What a piece or a collective that cannot go on waits for, and on which rank.
    pub(super) fn vocabulary_awaits(&self, rank: usize, task: MicrobatchTask) -> Option<(Task, usize)> {
        match task.op().is_piece() {
            true => self.round_for(task).err(),
            false => self.not_given(rank, task).map(|given| (given.into(), rank)),
        }
    }

    /// What a rank has not computed yet for a collective.
    fn not_given(&self, rank: usize, collective: MicrobatchTask) -> Option<MicrobatchTask> {
        let holds = self.plan.placement().rank_of(collective.stage()) == rank;
        let given = self.rounds.spread.given(collective, holds)?;
        let at = self.at(given.stage(), given.microbatch());
        let done = match given.op() {
            Op::Forward => !self.outputs[at].is_nan(),
            Op::Backward => !self.gradients[at].is_nan(),
            _ => self.plan.row(rank)[..self.ranks[rank].next].iter().rev().any(|action| *action == given.into()),
        };
        (!done).then_some(given)
    }

    /// Starts a collective on a rank; false if what the rank gives is not computed.
    pub(super) fn start_round(&mut self, rank: usize, task: MicrobatchTask) -> bool {
        if self.not_given(rank, task).is_some() {
            return false;
        }
        let (now, ranks) = (self.ranks[rank].clock, self.ranks.len());
        let number = self.rounds.spread.number(task);
        let round = &mut self.rounds.rounds[number];
        round.started += 1;
        round.last = round.last.max(now);
        if round.started == ranks {
            let kind = task.op() as usize - Op::BroadcastHidden as usize;
            (round.begun, round.over) = (round.last.max(self.rounds.free), 0.0);
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

    /// Runs a piece; false if the collective before it is not over.
    pub(super) fn piece(&mut self, rank: usize, task: MicrobatchTask) -> bool {
        let Ok(arrival) = self.round_for(task) else { return false };
        let (pieces, training) = (self.costs.pieces(), self.training);
        let ran = self.occupy(rank, task.into(), &[arrival], pieces.piece_seconds(task.op(), training));
        let Ran { start, end, .. } = ran;
        let memory = &mut self.ranks[rank].memory;
        match task.op() {
            Op::HeadForward => {
                memory.change(start, Held::Activations, pieces.head_activation_bytes);
                match training {
                    true => memory.change(end, Held::SendBuffers, pieces.hidden_bytes),
                    false => memory.change(end, Held::Activations, -pieces.head_activation_bytes),
                }
            }
            Op::HeadBackward => memory.change(end, Held::Activations, -pieces.head_activation_bytes),
            Op::EmbeddingForward => memory.change(end, Held::SendBuffers, pieces.embedded_bytes),
            _ => {}
        }
        if task.op() != Op::HeadBackward {
            self.release_round(rank, task, end);
        }
        true
    }

    /// What a collective brings to a rank, and takes from it.
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
        memory.change(start, Held::ReceiveBuffers, brings);
        memory.change(end, Held::SendBuffers, -takes);
    }

    /// Ends what a collective brought to the computation that has used it.
    pub(super) fn release_round(&mut self, rank: usize, task: MicrobatchTask, until: f64) {
        let Some(collective) = self.rounds.spread.awaited(task) else { return };
        let pieces = self.costs.pieces();
        let bytes = match collective.op() {
            Op::BroadcastHidden | Op::ReduceHead => pieces.hidden_bytes,
            _ => pieces.embedded_bytes,
        };
        self.ranks[rank].memory.change(until, Held::ReceiveBuffers, -bytes);
    }
}
