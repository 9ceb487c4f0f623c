//! Runs the cells of an unlowered plan, whose values need no transfers.

use super::cycle::deadlock;
use crate::plan::check::error::CheckError;
use crate::plan::edges::{Edges, Side};
use crate::plan::op::Op;
use crate::plan::rows::Plan;
use crate::plan::stage_id::StageId;
use crate::plan::task::Task;
use crate::plan::waiting::Waiting;

const FORWARD: u8 = 1;
const BACKWARD: u8 = 2;

/// Refuses an unlowered plan that deadlocks even though values need no transfers.
pub(in crate::plan::check) fn refuse_unlowered(plan: &Plan, edges: &Edges) -> Result<(), Box<CheckError>> {
    let mut run = Unlowered {
        plan,
        edges,
        done: vec![0; edges.pairs()],
        next: vec![0; plan.ranks()],
        waiting: vec![None; plan.ranks()],
    };
    let mut ready: Vec<usize> = (0..plan.ranks()).rev().collect();
    while let Some(rank) = ready.pop() {
        run.advance(rank, &mut ready);
    }
    match run.waiting.iter().position(Option::is_some) {
        None => Ok(()),
        Some(rank) => Err(deadlock(plan, rank, |rank| run.wait(rank), None)),
    }
}

/// A value that another rank computes: the pair that computes it, and `FORWARD` or `BACKWARD`.
type Value = (usize, u8);

struct Unlowered<'a> {
    plan: &'a Plan,
    edges: &'a Edges,
    done: Vec<u8>,
    next: Vec<usize>,
    waiting: Vec<Option<Value>>,
}

impl Unlowered<'_> {
    /// Runs a rank until it has to wait. Ranks that waited for what it computed become ready.
    fn advance(&mut self, rank: usize, ready: &mut Vec<usize>) {
        while let Some(action) = self.plan.row(rank).get(self.next[rank]) {
            self.waiting[rank] = action.tasks().filter_map(|task| self.needs(task)).find(|need| !self.has(*need));
            if self.waiting[rank].is_some() {
                return;
            }
            let edges = self.edges;
            for (value, peer) in action.tasks().filter_map(|task| gives(edges, task)) {
                self.done[value.0] |= value.1;
                if self.waiting[peer] == Some(value) {
                    ready.push(peer);
                }
            }
            self.next[rank] += 1;
        }
    }

    fn has(&self, (pair, event): Value) -> bool {
        self.done[pair] & event != 0
    }

    /// What a task needs from another rank.
    #[inline]
    fn needs(&self, task: Task) -> Option<Value> {
        let at = &self.edges.slots()[self.edges.find(task.stage())?];
        let pair = at.base + task.microbatch()?;
        match task.op() {
            Op::Forward if at.before == Side::OtherRank => Some((pair - at.microbatches, FORWARD)),
            Op::BackwardInput | Op::Backward if at.after == Side::OtherRank => Some((pair + at.microbatches, BACKWARD)),
            _ => None,
        }
    }

    fn wait(&self, rank: usize) -> Option<Waiting> {
        let step = self.next[rank];
        let action = *self.plan.row(rank).get(step)?;
        let task = action.tasks().find(|task| self.needs(*task).is_some_and(|need| !self.has(need)))?;
        let forward = task.op() == Op::Forward;
        let index = task.stage().index().saturating_add_signed(if forward { -1 } else { 1 });
        let stage = StageId::in_replica(task.stage().replica(), index);
        let needs = Task::new(stage, if forward { Op::Forward } else { Op::Backward }, task.microbatch()?);
        Some(Waiting { rank, step, action, needs, on: self.plan.placement().rank_of(stage) })
    }
}

/// What a task computes for another rank, and that rank.
#[inline]
fn gives(edges: &Edges, task: Task) -> Option<(Value, usize)> {
    let slot = edges.find(task.stage())?;
    let at = &edges.slots()[slot];
    let pair = at.base + task.microbatch()?;
    match task.op() {
        Op::Forward if at.after == Side::OtherRank => Some(((pair, FORWARD), edges.slots()[slot + 1].rank)),
        Op::BackwardInput | Op::Backward if at.before == Side::OtherRank => {
            Some(((pair, BACKWARD), edges.slots()[slot - 1].rank))
        }
        _ => None,
    }
}
