//! Completeness: a plan must have every task that it requires.
//!
//! Guarantees: the error names the first missing task, by stage and then by microbatch.

use super::refusals::{missing, refusal};
use super::state::{F, I, RECEIVED_B, RECEIVED_F, Reduction, Refusal, Row, SENT_B, SENT_F, Scan, W, WHOLE};
use crate::plan::edges::{Edges, Side};
use crate::plan::op::Op;
use crate::plan::rows::Plan;
use crate::plan::stage_id::StageId;
use crate::plan::task::Task;

/// Refuses a plan with less than one task for every two pairs, naming the first missing forward.
pub(in crate::plan::check) fn refuse_short(plan: &Plan, edges: &Edges) -> Result<(), Refusal> {
    let cells: usize = plan.rows().iter().map(Vec::len).sum();
    if edges.pairs() <= 2 * cells {
        return Ok(());
    }
    let mut forwards = vec![0usize; edges.slots().len()];
    let tasks = || plan.rows().iter().flatten().flat_map(|action| action.tasks());
    let slot_of = |task: Task| (task.op() == Op::Forward).then(|| edges.find(task.stage())).flatten();
    tasks().filter_map(slot_of).for_each(|slot| forwards[slot] += 1);
    let short = (0..forwards.len()).find(|&slot| forwards[slot] < edges.slots()[slot].microbatches);
    let Some(slot) = short else { return Ok(()) };
    // Of n forwards, the lowest missing number is at most n.
    let mut seen = vec![false; forwards[slot] + 1];
    for task in tasks().filter(|&task| slot_of(task) == Some(slot)) {
        if let Some(seen) = task.microbatch().and_then(|m| seen.get_mut(m)) {
            *seen = true;
        }
    }
    let microbatch = seen.iter().position(|&seen| !seen).unwrap_or(0);
    Err(missing(plan, edges.slots()[slot].rank, Task::new(edges.stage(slot), Op::Forward, microbatch)))
}

impl Scan<'_> {
    /// Refuses a pair without the events that its stage requires, and a receive without a sender.
    pub(super) fn refuse_incomplete(&self) -> Result<(), Refusal> {
        for (slot, at) in self.edges.slots().iter().enumerate() {
            let crosses = |side: Side| self.lowered && side == Side::OtherRank;
            let (before, after) = (crosses(at.before), crosses(at.after));
            let stage = self.edges.stage(slot);
            let trains = self.training && stage.index() >= self.plan.first_trained();
            let gives = self.training && self.plan.gives_gradients(stage);
            let whole = if self.plan.trains_alone(stage) { Op::BackwardWeight } else { Op::Backward };
            let due = [
                (F, true, Op::Forward),
                (I, trains, whole),
                (W, trains, Op::BackwardWeight),
                (RECEIVED_F, before, Op::ReceiveForward),
                (SENT_F, after, Op::SendForward),
                (RECEIVED_B, after && trains, Op::ReceiveBackward),
                (SENT_B, before && gives, Op::SendBackward),
            ];
            let owed = due.iter().filter(|(_, owed, _)| *owed).fold(0, |bits, (bit, _, _)| bits | bit);
            let pairs = &self.events[at.base..at.base + at.microbatches];
            let Some(microbatch) = pairs.iter().position(|events| events & !WHOLE != owed) else { continue };
            let events = pairs[microbatch];
            let absent = due.iter().find(|(bit, owed, _)| *owed && events & bit == 0);
            return Err(match absent {
                Some(&(_, _, op)) => missing(self.plan, at.rank, Task::new(stage, op, microbatch)),
                // Nothing is absent, so there is an extra event: a gradient received in a plan that computes none.
                None => {
                    let sender = self.edges.slots()[slot + 1].rank;
                    let next = StageId::in_route(stage.route(), stage.index() + 1);
                    missing(self.plan, sender, Task::new(next, Op::SendBackward, microbatch))
                }
            });
        }
        self.refuse_incomplete_skips()?;
        self.refuse_unreduced()
    }

    /// Refuses a stage whose gradients are not reduced, if those of any other are.
    fn refuse_unreduced(&self) -> Result<(), Refusal> {
        // A stage whose route has no microbatch, or that does not train, has no gradient to reduce.
        let has_none = |slot: usize| self.edges.stage(slot).index() < self.plan.first_trained();
        let mut slots = self.edges.slots().iter().zip(&self.reduced).enumerate();
        let unreduced =
            slots.position(|(slot, (at, &reduced))| reduced == Reduction::No && at.microbatches > 0 && !has_none(slot));
        match unreduced.filter(|_| self.reduced.iter().any(|&reduced| reduced != Reduction::No)) {
            Some(slot) => {
                let task = Task::whole_stage(self.edges.stage(slot), Op::ReduceGrad);
                Err(missing(self.plan, self.edges.slots()[slot].rank, task))
            }
            None => Ok(()),
        }
    }

    /// Refuses parameters that are not used before they are released or the row ends.
    pub(super) fn refuse_unused(&mut self) -> Result<(), Refusal> {
        for (slot, shard) in self.shards.iter().enumerate() {
            let last = (shard.gathered && !shard.used).then_some(shard.since);
            let Some(step) = shard.unused.or(last) else { continue };
            let action = Task::whole_stage(self.edges.stage(slot), Op::Unshard).into();
            self.row = Row { rank: self.edges.slots()[slot].rank, step, action, ..self.row };
            return Err(refusal!(self, UnusedUnshard));
        }
        Ok(())
    }

    /// Refuses a stage that computes while sharded, if any stage is unsharded.
    pub(super) fn refuse_bare(&mut self) -> Result<(), Refusal> {
        if !self.shards.iter().any(|shard| shard.managed) {
            return Ok(());
        }
        let Some(slot) = self.shards.iter().position(|shard| shard.bare) else { return Ok(()) };
        let (stage, rank) = (self.edges.stage(slot), self.edges.slots()[slot].rank);
        let computes = |task: &Task| task.stage() == stage && task.op().is_compute();
        let row = self.plan.row(rank).iter().enumerate();
        let first = row.flat_map(|(step, action)| action.tasks().map(move |task| (step, *action, task)));
        match first.into_iter().find(|(_, _, task)| computes(task)) {
            Some((step, action, task)) => {
                self.row = Row { rank, step, action, ..self.row };
                Err(self.sharded(task))
            }
            None => Ok(()),
        }
    }
}
