//! The inputs of a computation, and when they arrive.
//!
//! 1. `F` needs the previous stage's output. `I` and `B` need their own stage's `F` and the next stage's gradient. `W`
//!    needs its own stage's `I`; where it is the whole backward, it needs what `B` needs.
//! 2. A value made on the same rank is available at once. A value from another rank crosses by itself (unlowered plan)
//!    or in a message (lowered plan). At the ends of the model, a vocabulary-parallel embedding or head delivers the
//!    value in a collective.
//! 3. If a stage is unsharded, its parameters must have arrived too.

use super::messages::Arrival;
use super::report::IdleCause;
use super::state::Engine;
use crate::plan::{Action, MicrobatchTask, Op, StageId, Task, Waiting};

impl Engine<'_> {
    /// The time at which the inputs of a computation arrive, or the task that it waits for and that task's rank.
    pub(super) fn needs(&self, task: MicrobatchTask) -> Result<Arrival, (Task, usize)> {
        let (stage, placement) = (task.stage(), self.plan.placement());
        let own = self.at(stage, task.microbatch());
        let missing = |op| (task.with(stage, op).into(), placement.rank_of(stage));
        let no_neighbour = || self.round_for(task);
        let value = match task.op() {
            Op::Forward => match stage.previous() {
                None => no_neighbour(),
                Some(previous) => self.value(task, previous, false),
            },
            Op::BackwardWeight if !self.plan.begins_backward(task) => match self.gradients[own].is_nan() {
                true => Err(missing(Op::BackwardInput)),
                false => no_neighbour(),
            },
            _ if self.outputs[own].is_nan() => Err(missing(Op::Forward)),
            _ => match placement.next(stage) {
                None => no_neighbour(),
                Some(next) => self.value(task, next, false),
            },
        }?;
        let value = self.with_skips(task, value)?;
        let parameters = self.unsharded[placement.slot(stage)].unwrap_or(0.0);
        Ok(Arrival { arrived: value.arrived.max(parameters), ..value })
    }

    /// The time at which another stage's output or gradient reaches the task: the neighbour's, or a value `past` it,
    /// over a skip edge.
    pub(super) fn value(&self, task: MicrobatchTask, from: StageId, past: bool) -> Result<Arrival, (Task, usize)> {
        let (stage, placement) = (task.stage(), self.plan.placement());
        let (forward, microbatch) = (task.op() == Op::Forward, task.microbatch());
        let (source, target) = (placement.rank_of(from), placement.rank_of(stage));
        let cause = IdleCause::of_value(forward);
        if self.lowered && source != target {
            let op = if forward { Op::ReceiveForward } else { Op::ReceiveBackward };
            let (receive, at) = match past {
                true => (Task::skip(stage, op, microbatch, from.index()), self.skip_entry(stage, from, microbatch)),
                false => (task.with(stage, op).into(), self.at(stage, microbatch)),
            };
            return self.transfers.arrival(at, forward).ok_or((receive, target));
        }
        let made =
            if forward { self.outputs[self.at(from, microbatch)] } else { self.gradients[self.at(from, microbatch)] };
        if made.is_nan() {
            // Only `blocked` reports this task; it looks up whether the plan has `B` or `I` here.
            let op = if forward { Op::Forward } else { Op::Backward };
            return Err((task.with(from, op).into(), source));
        }
        let maker = if forward { from } else { stage };
        let crossing = match past {
            true => self.costs.skip_crossing_seconds(source, target, maker),
            false => self.costs.crossing_seconds(source, target, maker),
        };
        Ok(Arrival { made, sent: made, arrived: made + crossing, cause })
    }

    /// What an unfinished rank waits for; `None` if it has finished.
    pub(super) fn blocked(&self, rank: usize) -> Option<Waiting> {
        let state = &self.ranks[rank];
        let &action = self.plan.row(rank).get(state.next)?;
        if let Action::Single(task) = action
            && task.op().is_wait()
        {
            return self.wait_blocked(rank, task);
        }
        let mut tasks = action.tasks().skip(usize::from(state.half));
        let (awaits, on) = tasks.find_map(|task| match task.of_microbatch()? {
            transfer if transfer.op().is_transfer() => Some(self.transfer_awaits(transfer)),
            task if task.op().is_vocabulary() => self.vocabulary_awaits(rank, task),
            task => self.needs(task).err(),
        })?;
        Some(Waiting { rank, step: state.next, action, needs: self.plan.as_written(awaits), on })
    }
}
