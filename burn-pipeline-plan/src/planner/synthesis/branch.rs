//! Branch and bound: finds the optimum of small plans, for which the other searches only come close.
//!
//! Guarantees: the result is complete, legal, under the cap and faster than the best known order. The same input
//! gives the same rows. If the search ends before its nodes are used up, no order under the cap is faster than its
//! result (or, without a result, than the best known order).
//!
//! 1. A node is a prefix of every row, with times. Of all possible next steps, the one that would end first selects a
//!    rank. Each step of that rank that could start before that end is a branch (Giffler and Thompson 1960): if the
//!    rank started none of them, it would idle so long that the step could run first without delaying anything. All
//!    microbatches cost the same, so a stage takes them in order.
//! 2. If whole backwards are tried, `I` and `B` are two branches. Both count as ending when the longer one would:
//!    otherwise the shorter one's end would cut off orders that take the longer one.
//! 3. With a memory cap, point 1 alone would miss optima: a step that takes memory early may leave no room for a step
//!    that comes first in every best order. So one more branch *delays* the step that would end first until another
//!    step that takes memory has run on its rank. Steps that only free memory are never delayed.
//! 4. A node is dropped if its lower bound is not below the best makespan. The bound adds up the remaining work of a
//!    rank after its earliest next start, and what has to follow the last `F` and the last `I` of each stage on other
//!    ranks.
//! 5. A node is also dropped if an earlier node has the same steps done and no later time. The compared times are the
//!    clocks of ranks, and the ends of steps whose results are not used yet.

use super::instance::{Instance, Step, StepKind, in_turn};
use super::progress::Progress;
use std::collections::HashMap;

/// The most steps of a plan that is searched. Few larger searches would finish.
pub(super) const LARGEST: usize = 128;

const KINDS: [StepKind; 4] = [StepKind::Forward, StepKind::Input, StepKind::Weight, StepKind::Whole];

/// The tolerance for rounding: a makespan counts as better only if it is better by more than this share.
const ROUNDING: f64 = 1e-9;

pub(super) struct Finished {
    /// Rows that are faster than the best known order, with their makespan.
    pub(super) rows: Option<(f64, Vec<Vec<Step>>)>,
    /// True if no order under the cap is faster than these rows (or, without rows, than the best known order).
    pub(super) proven: bool,
}

/// Searches for rows faster than `known` seconds. Visits at most `most` nodes.
pub(super) fn finish(instance: &Instance, known: f64, most: usize) -> Finished {
    let least = known <= instance.lower_bound() * (1.0 + ROUNDING);
    if instance.steps() > LARGEST || least {
        return Finished { rows: None, proven: least };
    }
    let root = Node { progress: Progress::new(instance), delayed: vec![[false; 2]; instance.slots.len()] };
    let (heads, tails) = (instance.heads(), tails(instance));
    let (path, visited) = (Vec::new(), HashMap::new());
    let mut branch = Branch { instance, heads, tails, best: known, rows: None, path, visited, left: most };
    branch.visit(&root);
    let (best, proven) = (branch.best, branch.left > 0);
    Finished { rows: branch.rows.map(|rows| (best, rows)), proven }
}

/// A prefix of every row.
#[derive(Clone)]
struct Node {
    progress: Progress,
    /// True for the next `F` and the next `I` of each slot if they are delayed (point 3).
    delayed: Vec<[bool; 2]>,
}

struct Branch<'a> {
    instance: &'a Instance,
    /// The earliest time at which each slot's first `F` can start.
    heads: Vec<f64>,
    /// The least seconds that follow the end of a slot's last `F`, and of its last `I`.
    tails: Vec<[f64; 2]>,
    /// The best makespan so far.
    best: f64,
    rows: Option<Vec<Vec<Step>>>,
    /// The steps from the root to this node.
    path: Vec<Step>,
    /// The times of visited nodes, by the steps done.
    visited: HashMap<Vec<[u8; 3]>, Vec<Vec<f64>>>,
    /// Nodes that may still be visited.
    left: usize,
}

/// The least seconds after a slot's last `F`, and after its last `I`.
fn tails(instance: &Instance) -> Vec<[f64; 2]> {
    let slots = &instance.slots;
    let mut tails = vec![[0.0; 2]; slots.len()];
    for slot in 0..slots.len() {
        let least = |slot: usize| slots[slot].least_backward();
        let own = least(slot).0 - least(slot).1;
        let below = |_| slots[slot - 1].after.unwrap_or(0.0) + least(slot - 1).1 + tails[slot - 1][1];
        let below = slots[slot].before.map_or(0.0, below);
        let there_and_back = instance.least_way_back(slot) - slots[slot].seconds[0];
        tails[slot] = [there_and_back + own.max(below), own.max(below)];
    }
    tails
}

impl Branch<'_> {
    fn visit(&mut self, node: &Node) {
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        if self.bound(node) >= self.best * (1.0 - ROUNDING) || self.is_dominated(node) {
            return;
        }
        let ready = self.ready(node);
        let end = |&(at, step): &(f64, Step)| at + self.longest(step);
        let Some(first) = ready.iter().min_by(|a, b| end(a).total_cmp(&end(b))) else {
            if node.progress.done.iter().flatten().sum::<usize>() == self.instance.steps() {
                self.best = node.progress.clock.iter().copied().fold(0.0, f64::max);
                self.rows = Some(self.rows_of_path());
            }
            return;
        };
        let (until, rank) = (end(first), self.instance.slots[first.1.slot].rank);
        let here = |&&(at, step): &&(f64, Step)| self.instance.slots[step.slot].rank == rank && at < until;
        let mut next: Vec<(f64, Step)> = ready.iter().filter(here).copied().collect();
        if next.is_empty() {
            // The first step takes no time, so it does not start before its own end.
            next.push(*first);
        }
        // `I` first, then `F`, then `W`: good rows found early cut off more of the rest.
        let turn = |step: Step| [1, 0, 2, 0][step.kind as usize];
        next.sort_by(|a, b| a.0.total_cmp(&b.0).then(turn(a.1).cmp(&turn(b.1))));
        for (at, step) in next {
            let after = self.after(node, at, step);
            self.path.push(step);
            self.visit(&after);
            self.path.pop();
        }
        // The additional branch of point 3.
        if self.may_be_delayed(node, first.1) {
            let mut other = node.clone();
            other.delayed[first.1.slot][first.1.kind.place()] = true;
            self.visit(&other);
        }
    }

    /// Seconds of a step; for a backward, of the longer one of `I` and `B` (point 2).
    fn longest(&self, step: Step) -> f64 {
        let other = match step.kind {
            StepKind::Input if self.instance.mixes => StepKind::Whole,
            StepKind::Whole => StepKind::Input,
            same => same,
        };
        self.instance.seconds(step).max(self.instance.seconds(Step { kind: other, ..step }))
    }

    fn kinds(&self) -> impl Iterator<Item = StepKind> + use<> {
        KINDS.into_iter().take(if self.instance.mixes { 4 } else { 3 })
    }

    /// Returns true if a step takes memory, while it runs or after its end.
    fn takes_memory(&self, step: Step) -> bool {
        let (more, fewer) = self.instance.bytes(step);
        more > 0.0 || more > fewer
    }

    /// Returns true if another step that takes memory may have to run before this one on its rank.
    fn may_be_delayed(&self, node: &Node, step: Step) -> bool {
        if self.instance.cap.is_infinite() || !self.takes_memory(step) {
            return false;
        }
        let rank = self.instance.slots[step.slot].rank;
        self.instance.slots_of[rank].iter().any(|&slot| {
            self.kinds().filter(|&kind| kind != StepKind::Weight).any(|kind| {
                let microbatch = node.progress.done[slot][kind.place()];
                let other = Step { kind, slot, microbatch };
                let same = (slot, kind.place()) == (step.slot, step.kind.place());
                !same && microbatch < self.instance.slots[slot].microbatches && self.takes_memory(other)
            })
        })
    }

    fn after(&self, node: &Node, at: f64, step: Step) -> Node {
        let mut after = node.clone();
        after.progress.run(self.instance, at, step);
        if self.takes_memory(step) {
            let rank = self.instance.slots[step.slot].rank;
            self.instance.slots_of[rank].iter().for_each(|&slot| after.delayed[slot] = [false; 2]);
        }
        after
    }

    /// The next step of each slot and kind, with its start, if its inputs have been made and it fits.
    fn ready(&self, node: &Node) -> Vec<(f64, Step)> {
        let mut ready = Vec::new();
        for (number, slot) in self.instance.slots.iter().enumerate() {
            for kind in self.kinds() {
                let microbatch = node.progress.done[number][kind.place()];
                let delayed = node.delayed[number].get(kind.place()).is_some_and(|&delayed| delayed);
                if microbatch == slot.microbatches || delayed {
                    continue;
                }
                let step = Step { kind, slot: number, microbatch };
                let arrived = self.instance.arrival(&node.progress.ends, step);
                if !arrived.is_nan() && self.fits(node, step) {
                    ready.push((arrived.max(node.progress.clock[slot.rank]), step));
                }
            }
        }
        ready
    }

    fn fits(&self, node: &Node, step: Step) -> bool {
        let held = node.progress.held[self.instance.slots[step.slot].rank];
        let (more, fewer) = self.instance.bytes(step);
        self.instance.fits((held + more).max(held + more - fewer))
    }

    /// A lower bound on the makespan of every way to finish the node.
    fn bound(&self, node: &Node) -> f64 {
        let mut bound: f64 = 0.0;
        for (rank, slots) in self.instance.slots_of.iter().enumerate() {
            let clock = node.progress.clock[rank];
            let (mut work, mut soonest) = (0.0, f64::INFINITY);
            bound = bound.max(clock);
            for &slot in slots {
                let at = &self.instance.slots[slot];
                let left = |kind: usize| (at.microbatches - node.progress.done[slot][kind]) as f64;
                let (backward, gradient) = at.least_backward();
                let owed = left(2) - left(1);
                work += left(0) * at.seconds[0] + left(1) * backward + owed * at.seconds[2];
                let kinds = KINDS.into_iter().take(3).filter(|&kind| left(kind.place()) > 0.0);
                soonest = soonest.min(self.soonest(node, slot, kinds));
                for (kind, seconds) in [at.seconds[0], gradient].into_iter().enumerate() {
                    if left(kind) > 0.0 {
                        bound = bound.max(clock + left(kind) * seconds + self.tails[slot][kind]);
                    }
                }
            }
            if soonest.is_finite() {
                bound = bound.max(clock.max(soonest) + work);
            }
        }
        bound
    }

    /// The earliest start of any remaining step of a slot.
    fn soonest(&self, node: &Node, slot: usize, kinds_left: impl Iterator<Item = StepKind>) -> f64 {
        let at = |kind: StepKind| {
            let step = Step { kind, slot, microbatch: node.progress.done[slot][kind.place()] };
            let arrival = self.instance.arrival(&node.progress.ends, step);
            if arrival.is_nan() { self.heads[slot] } else { arrival }
        };
        kinds_left.map(at).fold(f64::INFINITY, f64::min)
    }

    /// Returns true if an earlier node with the same steps done has no later time (point 5). Otherwise records this
    /// node.
    fn is_dominated(&mut self, node: &Node) -> bool {
        let mut times = node.progress.clock.clone();
        for (number, slot) in self.instance.slots.iter().enumerate() {
            let [forwards, inputs, _] = node.progress.done[number];
            // An end counts until the neighbour's step has used it. The slot's own later steps start after the rank's
            // clock anyway.
            if slot.after.is_some() {
                let used = node.progress.done[number + 1][0];
                times.extend(&node.progress.ends[slot.base + used..slot.base + forwards]);
            }
            if slot.before.is_some() {
                let used = node.progress.done[number - 1][1];
                let first = self.instance.pairs + slot.base;
                times.extend(&node.progress.ends[first + used..first + inputs]);
            }
        }
        let no_later = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| a <= b);
        // Counts are small, so the highest bit can mark delayed steps.
        let mark = |(done, delayed): (&[usize; 3], &[bool; 2])| {
            let [forwards, inputs, weights] = done.map(|done| done as u8);
            [forwards | u8::from(delayed[0]) << 7, inputs | u8::from(delayed[1]) << 7, weights]
        };
        let steps = node.progress.done.iter().zip(&node.delayed).map(mark).collect();
        let visited = self.visited.entry(steps).or_default();
        if visited.iter().any(|other| no_later(other, &times)) {
            return true;
        }
        visited.retain(|other| !no_later(&times, other));
        visited.push(times);
        false
    }

    /// The rows of the steps from the root to this node.
    fn rows_of_path(&self) -> Vec<Vec<Step>> {
        let mut rows = vec![Vec::new(); self.instance.ranks()];
        self.path.iter().for_each(|&step| rows[self.instance.slots[step.slot].rank].push(step));
        in_turn(&mut rows);
        rows
    }
}
