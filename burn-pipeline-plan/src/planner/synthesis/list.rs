//! List scheduling: whenever a rank is free, it starts the step that a rule ranks first among the steps that are ready
//! and fit.
//!
//! Guarantees: the rows hold every step once, in an order that the inputs allow, with memory under the cap. A rule that
//! leads to no such rows has no result.
//!
//! 1. Ranks decide in order of time, so every decision sees all results made by then.
//! 2. Microbatches go through each stage in order. A stage runs at most a given number of `F` ahead of its `I`: the
//!    rule's multiple of the number that fills the time from an `F` to its gradient.
//! 3. `W` runs right after its `I`, in gaps, or last, as the rule says, and always when memory is short. Or all
//!    backwards are whole.
//! 4. An `F` starts only if enough memory is left for the remaining steps of each route's oldest unfinished
//!    microbatch on this rank. So the oldest microbatch can always finish and free its memory, and the scheduler
//!    never gets stuck.

use super::instance::{Instance, Slot, Step, StepKind};
use super::progress::Progress;
use derive_more::Display;

/// The order of steps that are ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Display)]
pub(super) enum Order {
    /// `I` before `F`, later chunks first.
    #[display("backwards first, deep first")]
    BackwardDeep,
    /// `I` before `F`, earlier chunks first.
    #[display("backwards first, shallow first")]
    BackwardShallow,
    /// `F` before `I`, later chunks first.
    #[display("forwards first")]
    ForwardDeep,
    /// The oldest microbatch, then `I` before `F`.
    #[display("oldest first")]
    Oldest,
}

/// When `W` runs.
#[derive(Clone, Copy, PartialEq, Debug, Display)]
pub(super) enum Weights {
    /// Right after its `I`.
    #[display("W at once")]
    AtOnce,
    /// In a gap of at least this share of its seconds.
    #[display("W in gaps from {_0}")]
    InGaps(f64),
    /// When no `F` and no `I` is left to start.
    #[display("W last")]
    Last,
    /// As part of a whole backward.
    #[display("whole backwards")]
    Whole,
}

/// A rule by which ranks choose their next step.
#[derive(Clone, Copy, PartialEq, Debug, Display)]
#[display("{order}, {weights}, {ahead} ahead, waiting {waiting}")]
pub(super) struct Rule {
    pub(super) order: Order,
    pub(super) weights: Weights,
    /// How many `F` may run ahead of their `I`, as a multiple of the number that fills the time to the first gradient.
    /// Infinite for no limit.
    pub(super) ahead: f64,
    /// How long to wait for a higher-ranked step, as a share of the seconds of the step that is ready.
    pub(super) waiting: f64,
}

/// All rules that split backwards, or all that do not, in the order in which they are tried.
pub(super) fn rules(split: bool) -> Vec<Rule> {
    let orders = [Order::BackwardDeep, Order::BackwardShallow, Order::ForwardDeep, Order::Oldest];
    let aheads = [1.0, 1.5, 2.0, 3.0, f64::INFINITY, 0.5];
    let weights: &[Weights] = if split {
        &[Weights::InGaps(1.0), Weights::InGaps(0.4), Weights::AtOnce, Weights::Last]
    } else {
        &[Weights::Whole]
    };
    let mut rules = Vec::new();
    for ahead in aheads {
        for order in orders {
            for &weights in weights {
                rules.extend([0.0, 0.6].map(|waiting| Rule { order, weights, ahead, waiting }));
            }
        }
    }
    rules
}

/// The step that a rank would start next, and when.
#[derive(Clone, Copy, Debug)]
struct Proposal {
    start: f64,
    step: Step,
}

/// The state of a list schedule that is being built.
struct Run<'a> {
    instance: &'a Instance,
    rule: Rule,
    /// How many `F` each slot may run ahead of its `I`.
    ahead: Vec<usize>,
    /// The most bytes that one backward adds on each rank.
    again: Vec<f64>,
    progress: Progress,
    rows: Vec<Vec<Step>>,
    proposals: Vec<Option<Proposal>>,
    /// A buffer for `propose`, to save allocations.
    ready: Vec<Proposal>,
}

/// The rows of a rule; `None` if it gets stuck under the cap.
pub(super) fn schedule(instance: &Instance, rule: Rule) -> Option<Vec<Vec<Step>>> {
    let ranks = instance.ranks();
    let mut run = Run {
        instance,
        rule,
        ahead: forwards_ahead(instance, rule),
        again: instance.again(rule.weights == Weights::Whole),
        progress: Progress::new(instance),
        rows: vec![Vec::new(); ranks],
        proposals: vec![None; ranks],
        ready: Vec::new(),
    };
    (0..ranks).for_each(|rank| run.look(rank));
    while let Some((rank, proposal)) = run.soonest() {
        run.commit(rank, proposal);
    }
    instance.is_complete(&run.rows).then_some(run.rows)
}

/// Rows that run one microbatch at a time, forward and back. No order takes less memory.
pub(super) fn one_by_one(instance: &Instance, whole: bool) -> Vec<Vec<Step>> {
    let mut rows = vec![Vec::new(); instance.ranks()];
    let most = instance.slots.iter().map(|slot| slot.microbatches).max().unwrap_or(0);
    let firsts = (0..instance.slots.len()).filter(|&slot| instance.slots[slot].before.is_none());
    let routes: Vec<_> = firsts.map(|first| first..instance.last_of[first] + 1).collect();
    for (microbatch, route) in (0..most).flat_map(|m| routes.iter().map(move |route| (m, route))) {
        let here = |slot: &usize| microbatch < instance.slots[*slot].microbatches;
        let mut push = |kind, slot: usize| rows[instance.slots[slot].rank].push(Step { kind, slot, microbatch });
        route.clone().filter(here).for_each(|slot| push(StepKind::Forward, slot));
        for slot in route.clone().rev().filter(here) {
            if whole {
                push(StepKind::Whole, slot);
            } else {
                push(StepKind::Input, slot);
                push(StepKind::Weight, slot);
            }
        }
    }
    rows
}

/// How many `F` each slot may run ahead of its `I`.
fn forwards_ahead(instance: &Instance, rule: Rule) -> Vec<usize> {
    let whole = rule.weights == Weights::Whole;
    let all = |slot: &Slot| slot.seconds[0] + if whole { slot.whole } else { slot.seconds[1] + slot.seconds[2] };
    let seconds = |slots: &Vec<usize>| slots.iter().map(|&s| all(&instance.slots[s])).sum::<f64>();
    let period = instance.slots_of.iter().map(seconds).fold(0.0, f64::max);
    let ahead = |slot: usize| {
        let way = instance.way_back(slot, |slot| slot.gradient_after(whole)) / period;
        // A period of zero makes this infinite or NaN. Then there is no limit.
        if way.is_finite() && rule.ahead.is_finite() { ((rule.ahead * way).ceil() as usize).max(1) } else { usize::MAX }
    };
    (0..instance.slots.len()).map(ahead).collect()
}

impl Run<'_> {
    /// The proposal that starts first, of the lowest rank in a tie.
    fn soonest(&self) -> Option<(usize, Proposal)> {
        let proposals = self.proposals.iter().enumerate().filter_map(|(rank, proposal)| Some((rank, (*proposal)?)));
        proposals.min_by(|a, b| a.1.start.total_cmp(&b.1.start))
    }

    /// Updates the proposal of a rank.
    fn look(&mut self, rank: usize) {
        self.proposals[rank] = self.propose(rank);
    }

    /// The step that a rank would run next; `None` if no step is ready and fits.
    fn propose(&mut self, rank: usize) -> Option<Proposal> {
        let mut ready = std::mem::take(&mut self.ready);
        let proposal = self.propose_from(rank, &mut ready);
        ready.clear();
        self.ready = ready;
        proposal
    }

    /// As [`Run::propose`], with a buffer for the steps that are ready.
    fn propose_from(&self, rank: usize, ready: &mut Vec<Proposal>) -> Option<Proposal> {
        let clock = self.progress.clock[rank];
        let (mut short, mut weight, mut to_come) = (false, None::<Step>, false);
        for &slot in &self.instance.slots_of[rank] {
            let [forwards, inputs, weights] = self.progress.done[slot];
            to_come |= inputs < self.instance.slots[slot].microbatches;
            let step = |kind, microbatch| Step { kind, slot, microbatch };
            let next = step(StepKind::Forward, forwards);
            let allowed = forwards - inputs < self.ahead[slot];
            if let Some(at) = self.arrival(next).filter(|_| allowed) {
                let fits = self.forward_fits(rank, slot);
                short |= !fits;
                ready.extend(fits.then(|| Proposal { start: at.max(clock), step: next }));
            }
            let next =
                step(if self.rule.weights == Weights::Whole { StepKind::Whole } else { StepKind::Input }, inputs);
            if let Some(at) = self.arrival(next) {
                let (more, fewer) = self.instance.bytes(next);
                let fits = self.instance.fits(self.progress.held[rank] + more.max(more - fewer));
                short |= !fits;
                ready.extend(fits.then(|| Proposal { start: at.max(clock), step: next }));
            }
            let older = weight.is_none_or(|w| weights < w.microbatch);
            if weights < inputs && older {
                weight = Some(step(StepKind::Weight, weights));
            }
        }
        let first = self.first(ready);
        let Some(weight) = weight else { return first };
        let at_once = match (self.rule.weights, first) {
            (Weights::AtOnce | Weights::Whole, _) => true,
            (Weights::InGaps(_), None) => true,
            (Weights::InGaps(share), Some(f)) => clock + share * self.instance.seconds(weight) <= f.start,
            (Weights::Last, None) => !to_come,
            (Weights::Last, Some(_)) => false,
        };
        // If memory is short and the rank would idle, a `W` frees some.
        let room = short && first.is_none_or(|f| f.start > clock);
        if at_once || room { Some(Proposal { start: clock, step: weight }) } else { first }
    }

    /// The highest ranked step among those that are ready first, or within the rule's waiting time.
    fn first(&self, ready: &[Proposal]) -> Option<Proposal> {
        let soonest = ready.iter().min_by(|a, b| a.start.total_cmp(&b.start))?;
        let until = soonest.start + self.rule.waiting * self.instance.seconds(soonest.step);
        let in_time = ready.iter().filter(|p| p.start <= until);
        in_time.min_by(|a, b| self.key(a.step).cmp(&self.key(b.step)).then(a.start.total_cmp(&b.start))).copied()
    }

    /// The sort key of a step under the rule; the lowest comes first.
    fn key(&self, step: Step) -> (usize, usize, usize) {
        let (backward, last) = (usize::from(step.kind == StepKind::Forward), self.instance.slots.len() - step.slot);
        // Deep means late in a microbatch's path: a later stage for an `F`, an earlier stage for a backward.
        let deep = if step.kind == StepKind::Forward { last } else { step.slot };
        match self.rule.order {
            Order::BackwardDeep => (backward, deep, step.microbatch),
            Order::BackwardShallow => (backward, usize::MAX - deep, step.microbatch),
            Order::ForwardDeep => (1 - backward, deep, step.microbatch),
            Order::Oldest => (step.microbatch, backward, deep),
        }
    }

    /// When the inputs of a slot's next step arrive, if the slot has a further one and all its inputs have been made.
    fn arrival(&self, step: Step) -> Option<f64> {
        let is_left = step.microbatch < self.instance.slots[step.slot].microbatches;
        let arrival = is_left.then(|| self.instance.arrival(&self.progress.ends, step));
        arrival.filter(|arrival| !arrival.is_nan())
    }

    /// Returns true if the next `F` of a slot leaves room to finish the oldest microbatch of each route (point 4
    /// above).
    fn forward_fits(&self, rank: usize, slot: usize) -> bool {
        if self.instance.cap.is_infinite() {
            return true;
        }
        let slots = &self.instance.slots;
        let mut bytes = self.progress.held[rank] + slots[slot].kept() + self.again[rank].max(slots[slot].freed[0]);
        for &other in &self.instance.slots_of[rank] {
            let done = self.progress.done[other][0];
            let owed = done == self.oldest(other) && done < slots[other].microbatches;
            if owed && other != slot {
                bytes += slots[other].kept();
            }
            // Nothing is added for `slot` itself: its next `F` is the oldest microbatch's, or that one has run already.
        }
        self.instance.fits(bytes)
    }

    /// The oldest microbatch of a slot's route whose `F` has not run on the last stage.
    fn oldest(&self, slot: usize) -> usize {
        self.progress.done[self.instance.last_of[slot]][0]
    }

    /// Runs a step, and updates the proposals that it may change.
    fn commit(&mut self, rank: usize, Proposal { start, step }: Proposal) {
        self.progress.run(self.instance, start, step);
        self.rows[rank].push(step);
        self.look(rank);
        if let Some(other) = self.instance.user(step) {
            self.look(other);
        }
        let limited = self.instance.cap.is_finite();
        if limited && step.kind == StepKind::Forward && self.instance.slots[step.slot].after.is_none() {
            // The next microbatch is now the oldest, so ranks that kept room for this one may have room again.
            (0..self.rows.len()).for_each(|rank| self.look(rank));
        }
    }
}
