//! What a computation waits for, and when that is there.
//!
//! 1. `F` needs the previous stage's output; `I` and `B` their own stage's `F` and the next stage's gradient; `W` its
//!    own stage's `I`.
//! 2. Where the neighbour is on the same rank, its value is there when it is made; else it crosses by itself
//!    (unlowered), or in a message.
//! 3. Where a stage is unsharded, its parameters have to be there too.

use super::engine::{Arrival, Engine};
use super::error::Blocked;
use super::report::IdleCause;
use crate::plan::{Action, Op, StageId, Task};

impl Engine<'_> {
    /// When what a computation needs is there, or the task and rank that it waits for.
    pub(super) fn needs(&self, task: Task) -> Result<Arrival, (Task, usize)> {
        let (stage, placement) = (task.stage(), self.plan.placement());
        let own = self.at(stage, task);
        let missing = |op| (self.same(task, stage, op), placement.rank_of(stage));
        let nothing = Arrival { sent: 0.0, arrived: 0.0, cause: IdleCause::Input };
        let value = match task.op() {
            Op::Forward => match stage.previous() {
                None => Ok(nothing),
                Some(previous) => self.value(task, previous),
            },
            Op::BackwardWeight if self.gradients[own].is_nan() => Err(missing(Op::BackwardInput)),
            Op::BackwardWeight => Ok(nothing),
            _ if self.outputs[own].is_nan() => Err(missing(Op::Forward)),
            _ => match placement.next(stage) {
                None => Ok(nothing),
                Some(next) => self.value(task, next),
            },
        }?;
        let value = self.with_skips(task, value)?;
        let parameters = self.unsharded[placement.slot(stage)].unwrap_or(0.0);
        Ok(Arrival { arrived: value.arrived.max(parameters), ..value })
    }

    /// The neighbour stage's output, or its gradient, as it reaches the task.
    fn value(&self, task: Task, from: StageId) -> Result<Arrival, (Task, usize)> {
        let (stage, placement) = (task.stage(), self.plan.placement());
        let forward = task.op() == Op::Forward;
        let (source, target) = (placement.rank_of(from), placement.rank_of(stage));
        let cause = if forward { IdleCause::Input } else { IdleCause::Gradient };
        if self.lowered && source != target {
            let receive = self.same(task, stage, if forward { Op::ReceiveForward } else { Op::ReceiveBackward });
            return self.transfers.arrival(self.at(stage, task), forward).ok_or((receive, target));
        }
        let made = if forward { self.outputs[self.at(from, task)] } else { self.gradients[self.at(from, task)] };
        if made.is_nan() {
            // Whether that is `B` or `I` is looked up only if it comes to a deadlock.
            let op = if forward { Op::Forward } else { Op::Backward };
            return Err((self.same(task, from, op), source));
        }
        let crossing = self.costs.crossing_seconds(source, target, if forward { from } else { stage });
        Ok(Arrival { sent: made, arrived: made + crossing, cause })
    }

    fn same(&self, task: Task, stage: StageId, op: Op) -> Task {
        Task::new(stage, op, task.microbatch().unwrap_or(0))
    }

    /// `I` where the plan splits this backward, else `B`.
    fn backward_of(&self, stage: StageId, task: Task) -> Op {
        let split = self.same(task, stage, Op::BackwardInput);
        let row = self.plan.placement().rank_of(stage);
        if self.plan.tasks(row).any(|t| t == split) { Op::BackwardInput } else { Op::Backward }
    }

    /// Why a rank that has not finished cannot go on.
    pub(super) fn blocked(&self, rank: usize) -> Option<Blocked> {
        let state = &self.ranks[rank];
        let &action = self.plan.row(rank).get(state.next)?;
        if let Action::Single(task) = action
            && task.op().is_wait()
        {
            return self.wait_blocked(rank, task);
        }
        let mut tasks = action.tasks().skip(usize::from(state.half));
        let (awaits, on) = tasks.find_map(|task| match task.op().is_transfer() {
            true => Some(self.transfer_awaits(task)),
            false => self.needs(task).err(),
        })?;
        let awaits = match awaits.op() {
            Op::Backward => self.same(awaits, awaits.stage(), self.backward_of(awaits.stage(), awaits)),
            _ => awaits,
        };
        Some(Blocked { rank, step: state.next, action, awaits, on })
    }
}
