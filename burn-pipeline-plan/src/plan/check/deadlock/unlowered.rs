//! Step 2 of the [deadlock check](super): runs the cells of an unlowered plan, whose values need no transfers.
//!
//! Each rank runs until it needs a value of another rank, or a collective that some rank has not started. The rank that
//! provides it wakes the waiting one.

use super::cycle::deadlock;
use crate::plan::check::error::CheckError;
use crate::plan::edges::{Edges, Side};
use crate::plan::op::Op;
use crate::plan::rows::Plan;
use crate::plan::task::Task;
use crate::plan::vocabulary::VocabularyLayers;
use crate::plan::waiting::Waiting;

const FORWARD: u8 = 1;
const BACKWARD: u8 = 2;
const COLLECTIVE: u8 = 4;

/// Refuses an unlowered plan that deadlocks even though its values need no transfers.
pub(in crate::plan::check) fn refuse_unlowered(plan: &Plan, edges: &Edges) -> Result<(), Box<CheckError>> {
    let vocabulary = VocabularyLayers::of(plan);
    let mut run = Unlowered {
        plan,
        edges,
        vocabulary,
        collectives: vec![0; vocabulary.collectives()],
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

/// A value that another rank computes: the pair that computes it, with `FORWARD` or `BACKWARD`; or the number of a
/// collective, with `COLLECTIVE`.
type Value = (usize, u8);

struct Unlowered<'a> {
    plan: &'a Plan,
    edges: &'a Edges,
    vocabulary: VocabularyLayers,
    /// The number of ranks that have started each collective.
    collectives: Vec<u32>,
    done: Vec<u8>,
    next: Vec<usize>,
    waiting: Vec<Option<Value>>,
}

impl Unlowered<'_> {
    /// Runs a rank until it has to wait. Ranks that waited for its results become ready.
    fn advance(&mut self, rank: usize, ready: &mut Vec<usize>) {
        while let Some(action) = self.plan.row(rank).get(self.next[rank]) {
            self.waiting[rank] = action.tasks().filter_map(|task| self.needs(task)).find(|need| !self.has(*need));
            if self.waiting[rank].is_some() {
                return;
            }
            let edges = self.edges;
            action.tasks().for_each(|task| self.start_collective(task, ready));
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
        if event == COLLECTIVE {
            return self.collectives[pair] as usize == self.next.len();
        }
        self.done[pair] & event != 0
    }

    /// Counts a start; the last one wakes the ranks that wait for the collective.
    fn start_collective(&mut self, task: Task, ready: &mut Vec<usize>) {
        let Some(task) = task.of_microbatch().filter(|task| task.op().is_rank_collective()) else { return };
        let value = (self.vocabulary.number(task), COLLECTIVE);
        self.collectives[value.0] += 1;
        if self.has(value) {
            ready.extend((0..self.next.len()).filter(|&rank| self.waiting[rank] == Some(value)));
        }
    }

    /// The value that a task needs from another rank.
    #[inline]
    fn needs(&self, task: Task) -> Option<Value> {
        if let Some(collective) = self.vocabulary.awaited(task.of_microbatch()?) {
            return Some((self.vocabulary.number(collective), COLLECTIVE));
        }
        let at = &self.edges.slots()[self.edges.find(task.stage())?];
        let pair = at.base + task.microbatch()?;
        match task.op() {
            Op::Forward if at.before == Side::OtherRank => Some((pair - at.microbatches, FORWARD)),
            _ if self.plan.begins_backward(task) && at.after == Side::OtherRank => {
                Some((pair + at.microbatches, BACKWARD))
            }
            _ => None,
        }
    }

    fn wait(&self, rank: usize) -> Option<Waiting> {
        let step = self.next[rank];
        let action = *self.plan.row(rank).get(step)?;
        let task = action.tasks().find(|task| self.needs(*task).is_some_and(|need| !self.has(need)))?;
        if let Some(collective) = self.vocabulary.awaited(task.of_microbatch()?) {
            let needs = collective.into();
            let on = self.plan.first_without(needs, |rank| self.next[rank])?;
            return Some(Waiting { rank, step, action, needs, on });
        }
        let needs = self.plan.as_written(self.plan.input_of(task.of_microbatch()?)?.into());
        Some(Waiting { rank, step, action, needs, on: self.plan.placement().rank_of(needs.stage()) })
    }
}

/// The value that a task computes for another rank, and that rank.
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
