//! The problem of a synthesis: a placement and its costs as flat, numbered tables, and the steps to order.
//!
//! 1. The stages of all routes are *slots*, in the order of `Placement::slot`. The pairs (slot, microbatch) are
//!    numbered consecutively, so a neighbour's pair is found by adding or subtracting the microbatch count.
//! 2. The backward of a microbatch on a slot is an `I` and a `W`, or one whole `B`. If some stage's `B` costs less than
//!    its `I` and `W` together, or holds less memory, both forms are tried ([`Instance::mixes`]).
//! 3. Memory along a row does not depend on times. `F` adds its activations at its start; while it runs, it also
//!    holds those that will be recomputed. `I` adds the recomputed bytes at its start and frees its part at its end
//!    (a negative number if it leaves more than it frees). `W` frees the rest at its end. `B` adds what `I` adds, and
//!    frees everything at its end.

use crate::cost::Costs;
use crate::plan::{Action, Plan, Task};
use std::collections::{HashMap, VecDeque};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum StepKind {
    Forward,
    Input,
    Weight,
    /// A whole backward: `I` and `W` in one.
    Whole,
}

impl StepKind {
    /// Its index in lists of `F`, `I` and `W`. A whole backward makes the same gradient as `I`, so it has the index
    /// of `I`.
    pub(super) fn place(self) -> usize {
        match self {
            StepKind::Forward => 0,
            StepKind::Input | StepKind::Whole => 1,
            StepKind::Weight => 2,
        }
    }

    /// The indices of the operations that it performs, among `F`, `I` and `W`.
    pub(super) fn does(self) -> &'static [usize] {
        match self {
            StepKind::Forward => &[0],
            StepKind::Input => &[1],
            StepKind::Weight => &[2],
            StepKind::Whole => &[1, 2],
        }
    }
}

/// A step of a row: an operation of one slot for one microbatch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Step {
    pub(super) kind: StepKind,
    pub(super) slot: usize,
    pub(super) microbatch: usize,
}

/// One stage of one route.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) rank: usize,
    /// The number of the slot's first pair.
    pub(super) base: usize,
    pub(super) microbatches: usize,
    /// Transfer seconds of its input from the stage before, if there is one.
    pub(super) before: Option<f64>,
    /// Transfer seconds of its output's gradient from the stage after, if there is one.
    pub(super) after: Option<f64>,
    /// Seconds of `F`, `I` and `W`.
    pub(super) seconds: [f64; 3],
    /// Seconds of `B`.
    pub(super) whole: f64,
    /// Bytes that `F`, `I` and `W` add at their starts.
    pub(super) added: [f64; 3],
    /// Bytes that they free at their ends; negative if `I` leaves more than it frees.
    pub(super) freed: [f64; 3],
}

impl Slot {
    /// The most bytes that one `I`, or one `B` if `whole`, adds while it runs or after its end.
    fn backward_adds(&self, whole: bool) -> f64 {
        if whole { self.added[1] } else { self.added[1].max(self.added[1] - self.freed[1]) }
    }

    /// Seconds from the start of an `I`, or of a `B` if `whole`, to its gradient.
    pub(super) fn gradient_after(&self, whole: bool) -> f64 {
        if whole { self.whole } else { self.seconds[1] }
    }

    /// The least seconds of a microbatch's backward, and the least seconds until its gradient is made.
    pub(super) fn least_backward(&self) -> (f64, f64) {
        let [_, input, weight] = self.seconds;
        (self.whole.min(input + weight), self.whole.min(input))
    }

    /// Bytes that an `F` keeps for its backward.
    pub(super) fn kept(&self) -> f64 {
        self.added[0] - self.freed[0]
    }
}

/// A placement with its costs, and the memory cap.
#[derive(Clone, Debug)]
pub(super) struct Instance {
    pub(super) slots: Vec<Slot>,
    pub(super) slots_of: Vec<Vec<usize>>,
    /// The last slot of each slot's route.
    pub(super) last_of: Vec<usize>,
    /// Bytes of parameters on each rank.
    pub(super) weights: Vec<f64>,
    pub(super) cap: f64,
    /// True if whole backwards are tried beside split ones.
    pub(super) mixes: bool,
    /// The number of pairs of slot and microbatch.
    pub(super) pairs: usize,
}

impl Instance {
    pub(super) fn new(costs: &Costs<'_>, microbatches: &[usize], cap: f64) -> Self {
        let placement = costs.placement();
        let (mut pairs, mut slots) = (0, Vec::with_capacity(placement.slots()));
        for stage in placement.all_stages() {
            let (cost, rank, count) = (costs.stage(stage), placement.rank_of(stage), microbatches[stage.route()]);
            let crossing = |from, to, output_of| costs.crossing_seconds(from, to, output_of);
            let all = cost.activation_bytes + cost.recomputed_bytes;
            let freed = cost.freed_at_input_bytes;
            slots.push(Slot {
                rank,
                base: pairs,
                microbatches: count,
                before: stage.previous().map(|previous| crossing(placement.rank_of(previous), rank, previous)),
                after: placement.next(stage).map(|next| crossing(placement.rank_of(next), rank, stage)),
                seconds: [cost.forward, cost.input_backward(), cost.weight_backward()],
                whole: cost.full_backward(),
                added: [all, cost.recomputed_bytes, 0.0],
                freed: [cost.recomputed_bytes, freed, all - freed],
            });
            pairs += count;
        }
        let ranks = 0..placement.ranks();
        let slots_of: Vec<Vec<usize>> =
            ranks.map(|rank| (0..slots.len()).filter(|&slot| slots[slot].rank == rank).collect()).collect();
        let bytes = |rank| placement.stages_of(rank).into_iter().map(|stage| costs.stage(stage).weight_bytes).sum();
        let weights = (0..placement.ranks()).map(bytes).collect();
        let stages = placement.stages();
        let last_of = (0..slots.len()).map(|slot| slot / stages * stages + stages - 1).collect();
        let cheaper = |slot: &Slot| slot.whole < slot.seconds[1] + slot.seconds[2];
        let leaner = |slot: &Slot| slot.freed[1] < 0.0 && cap.is_finite();
        let mixes = slots.iter().any(|slot| cheaper(slot) || leaner(slot));
        Self { slots, slots_of, last_of, weights, cap, mixes, pairs }
    }

    pub(super) fn ranks(&self) -> usize {
        self.slots_of.len()
    }

    /// The number of steps of a complete order; a `B` counts as two.
    pub(super) fn steps(&self) -> usize {
        self.pairs * 3
    }

    /// The index of a step in tables. A `B` has the index of the `I` that it replaces.
    pub(super) fn index(&self, step: Step) -> usize {
        step.kind.place() * self.pairs + self.slots[step.slot].base + step.microbatch
    }

    pub(super) fn seconds(&self, step: Step) -> f64 {
        let slot = &self.slots[step.slot];
        if step.kind == StepKind::Whole { slot.whole } else { slot.seconds[step.kind.place()] }
    }

    /// Bytes that a step adds at its start, and bytes that it frees at its end.
    pub(super) fn bytes(&self, step: Step) -> (f64, f64) {
        let (slot, place) = (&self.slots[step.slot], step.kind.place());
        let fewer = if step.kind == StepKind::Whole { slot.freed[1] + slot.freed[2] } else { slot.freed[place] };
        (slot.added[place], fewer)
    }

    /// Returns true if the rows have as many steps as a complete order.
    pub(super) fn is_complete(&self, rows: &[Vec<Step>]) -> bool {
        rows.iter().flatten().map(|step| step.kind.does().len()).sum::<usize>() == self.steps()
    }

    /// The most bytes that a rank holds while it runs a row, without messages.
    pub(super) fn peak(&self, rank: usize, row: &[Step]) -> f64 {
        let (mut held, mut peak) = (self.weights[rank], self.weights[rank]);
        for &step in row {
            let (more, fewer) = self.bytes(step);
            held += more;
            peak = f64::max(peak, held);
            held -= fewer;
            peak = f64::max(peak, held);
        }
        peak
    }

    /// Returns true if this many bytes are within the cap, up to rounding.
    pub(super) fn fits(&self, bytes: f64) -> bool {
        bytes <= self.cap * (1.0 + 1e-12)
    }

    /// For each rank, the most bytes that one backward adds, while it runs or until its `W`.
    pub(super) fn again(&self, whole: bool) -> Vec<f64> {
        let most = |of: &Vec<usize>| of.iter().map(|&slot| self.slots[slot].backward_adds(whole)).fold(0.0, f64::max);
        self.slots_of.iter().map(most).collect()
    }

    /// A lower bound on the makespan of every order: the work of a rank after the earliest start of its first step,
    /// or one microbatch's forwards and backwards through all stages.
    pub(super) fn lower_bound(&self) -> f64 {
        let mut bound: f64 = 0.0;
        let heads = self.heads();
        for slots in &self.slots_of {
            let used = || slots.iter().filter(|&&slot| self.slots[slot].microbatches > 0);
            let all = |slot: &Slot| slot.microbatches as f64 * (slot.seconds[0] + slot.least_backward().0);
            let work: f64 = used().map(|&s| all(&self.slots[s])).sum();
            let head = used().map(|&slot| heads[slot]).fold(f64::INFINITY, f64::min);
            if head.is_finite() {
                bound = bound.max(head + work);
            }
        }
        let busy = self.slots.iter().enumerate().filter(|(_, slot)| slot.microbatches > 0);
        let rest = |slot: &Slot| slot.least_backward().0 - slot.least_backward().1;
        let there_and_back = busy.map(|(index, slot)| heads[index] + self.least_way_back(index) + rest(slot));
        there_and_back.fold(bound, f64::max)
    }

    /// The earliest time at which each slot's first `F` can start.
    pub(super) fn heads(&self) -> Vec<f64> {
        let mut heads = vec![0.0; self.slots.len()];
        for slot in 0..self.slots.len() {
            if let Some(crossing) = self.slots[slot].before {
                heads[slot] = heads[slot - 1] + self.slots[slot - 1].seconds[0] + crossing;
            }
        }
        heads
    }

    /// The least seconds from the start of a slot's `F` to the end of its `I`.
    pub(super) fn least_way_back(&self, slot: usize) -> f64 {
        self.way_back(slot, |slot| slot.least_backward().1)
    }

    /// Seconds from the start of a slot's `F` to its gradient, if each slot makes its gradient in `gradient_after`
    /// seconds.
    pub(super) fn way_back(&self, slot: usize, gradient_after: impl Fn(&Slot) -> f64 + Copy) -> f64 {
        let last = slot + self.slots[slot..].iter().take_while(|slot| slot.after.is_some()).count();
        (slot..=last).rev().fold(0.0, |next, slot| {
            let own = &self.slots[slot];
            let beyond = |back| self.to_next(slot) + next + back;
            own.seconds[0] + own.after.map_or(0.0, beyond) + gradient_after(own)
        })
    }

    /// Transfer seconds of a slot's output to the next slot.
    fn to_next(&self, slot: usize) -> f64 {
        self.slots.get(slot + 1).and_then(|next| next.before).unwrap_or(0.0)
    }

    /// Converts rows to the actions of a plan.
    pub(super) fn actions(&self, costs: &Costs<'_>, rows: &[Vec<Step>]) -> Vec<Vec<Action>> {
        let stages: Vec<_> = costs.placement().all_stages().collect();
        let action = |step: &Step| {
            let (stage, microbatch) = (stages[step.slot], step.microbatch);
            match step.kind {
                StepKind::Forward => Action::forward(stage, microbatch),
                StepKind::Input => Action::backward_input(stage, microbatch),
                StepKind::Weight => Action::backward_weight(stage, microbatch),
                StepKind::Whole => Action::backward(stage, microbatch),
            }
        };
        rows.iter().map(|row| row.iter().map(action).collect()).collect()
    }

    /// The steps of a plan for the same placement; `None` if it has actions other than single `F`, `I`, `W` and `B`.
    pub(super) fn rows_of(plan: &Plan) -> Option<Vec<Vec<Step>>> {
        use crate::plan::Op;
        let step = |task: Task| {
            let kind = match task.op() {
                Op::Forward => StepKind::Forward,
                Op::BackwardInput => StepKind::Input,
                Op::BackwardWeight => StepKind::Weight,
                Op::Backward => StepKind::Whole,
                _ => return None,
            };
            Some(Step { kind, slot: plan.placement().slot(task.stage()), microbatch: task.microbatch()? })
        };
        let row = |row: &Vec<Action>| {
            let steps = row.iter().filter(|action| !action.is_idle()).map(|action| match *action {
                Action::Single(task) => step(task),
                _ => None,
            });
            steps.collect::<Option<Vec<Step>>>()
        };
        plan.rows().iter().map(row).collect()
    }
}

/// Puts the `W` of each slot into the order of their `I`. All microbatches cost the same, so the order gets no slower.
pub(super) fn in_turn(rows: &mut [Vec<Step>]) {
    for row in rows {
        let mut owed: HashMap<usize, VecDeque<usize>> = HashMap::new();
        for step in row {
            let of_slot = owed.entry(step.slot).or_default();
            match step.kind {
                StepKind::Input => of_slot.push_back(step.microbatch),
                StepKind::Weight => step.microbatch = of_slot.pop_front().unwrap_or(step.microbatch),
                StepKind::Forward | StepKind::Whole => {}
            }
        }
    }
}

/// The same rows, with each `I` followed at once by a `W` of its slot replaced by one `B`.
pub(super) fn joined(rows: &[Vec<Step>]) -> Vec<Vec<Step>> {
    let join = |row: &Vec<Step>| {
        let mut joined: Vec<Step> = Vec::with_capacity(row.len());
        for &step in row {
            match joined.last_mut() {
                Some(last) if (last.kind, step.kind, last.slot) == (StepKind::Input, StepKind::Weight, step.slot) => {
                    last.kind = StepKind::Whole;
                }
                _ => joined.push(step),
            }
        }
        joined
    };
    let mut joined: Vec<Vec<Step>> = rows.iter().map(join).collect();
    in_turn(&mut joined);
    joined
}
