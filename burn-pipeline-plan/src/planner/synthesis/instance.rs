//! What the synthesis knows of a placement and its costs, flat and numbered.
//!
//! Guarantees: nothing here depends on the order of anything but the numbers given.
//!
//! 1. Stages of all replicas are *slots* in [`Placement::slot`] order; the pairs (slot, microbatch) follow one another
//!    as in the passes, so that a neighbour's pair is found by adding or subtracting the microbatch count.
//! 2. A backward is an `I` and a `W`, or a whole `B` in their stead, microbatch by microbatch. Where some stage's `B`
//!    costs less than both, or holds less, it is worth trying both ways.
//! 3. Along a row memory does not depend on times: `F` holds its activations from its start, and while it runs what
//!    will be recomputed; `I` holds that again from its start and gives back its part at its end (or leaves more than
//!    it gives back), `W` gives back the rest; `B` holds what `I` does and gives back all at its end.

use crate::cost::Costs;
use crate::plan::{Action, Plan, Task};
use std::collections::{HashMap, VecDeque};

/// What a step computes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Pass {
    Forward,
    Input,
    Weight,
    /// `I` and `W` in one.
    Whole,
}

impl Pass {
    /// Where lists of `F`, `I` and `W` have what this pass makes: a whole backward's gradient is that of an `I`.
    pub(super) fn place(self) -> usize {
        match self {
            Pass::Forward => 0,
            Pass::Input | Pass::Whole => 1,
            Pass::Weight => 2,
        }
    }

    /// What it does of `F`, `I` and `W`.
    pub(super) fn does(self) -> &'static [usize] {
        match self {
            Pass::Forward => &[0],
            Pass::Input => &[1],
            Pass::Weight => &[2],
            Pass::Whole => &[1, 2],
        }
    }
}

/// A step of a row: a pass of one slot for one microbatch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Step {
    pub(super) pass: Pass,
    pub(super) slot: usize,
    pub(super) microbatch: usize,
}

/// One stage of one replica.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) rank: usize,
    pub(super) base: usize,
    pub(super) microbatches: usize,
    /// Seconds for its input to cross from the stage before, if there is one.
    pub(super) before: Option<f64>,
    /// Seconds for its output's gradient to cross from the stage after, if there is one.
    pub(super) after: Option<f64>,
    /// Seconds of `F`, `I` and `W`.
    pub(super) seconds: [f64; 3],
    /// Seconds of `B`.
    pub(super) whole: f64,
    /// Bytes that `F`, `I` and `W` add at their starts.
    pub(super) added: [f64; 3],
    /// Bytes that they give back at their ends.
    pub(super) freed: [f64; 3],
}

impl Slot {
    /// Bytes that one `I` or one `B` adds at most, while it runs or when it is over.
    fn backward_adds(&self, whole: bool) -> f64 {
        if whole { self.added[1] } else { self.added[1].max(self.added[1] - self.freed[1]) }
    }

    /// Seconds from the start of an `I` or a `B` to its gradient.
    pub(super) fn gradient_after(&self, whole: bool) -> f64 {
        if whole { self.whole } else { self.seconds[1] }
    }

    /// Seconds that a microbatch's backward takes at least, and of these, seconds until its gradient is made.
    pub(super) fn least_backward(&self) -> (f64, f64) {
        let [_, input, weight] = self.seconds;
        (self.whole.min(input + weight), self.whole.min(input))
    }

    /// Bytes that an `F` leaves behind.
    pub(super) fn kept(&self) -> f64 {
        self.added[0] - self.freed[0]
    }
}

/// A placement with its costs, and the cap.
#[derive(Clone, Debug)]
pub(super) struct Instance {
    pub(super) slots: Vec<Slot>,
    pub(super) slots_of: Vec<Vec<usize>>,
    /// The last slot of each slot's route.
    pub(super) last_of: Vec<usize>,
    /// Bytes of parameters on each rank.
    pub(super) weights: Vec<f64>,
    pub(super) cap: f64,
    /// Are whole backwards worth trying beside split ones?
    pub(super) mixes: bool,
    pub(super) pairs: usize,
}

impl Instance {
    pub(super) fn new(costs: &Costs<'_>, microbatches: &[usize], cap: f64) -> Self {
        let placement = costs.placement();
        let (mut pairs, mut slots) = (0, Vec::with_capacity(placement.slots()));
        for stage in placement.all_stages() {
            let (cost, rank, count) = (costs.stage(stage), placement.rank_of(stage), microbatches[stage.replica()]);
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

    /// Steps of the plan with all backwards split: as many as there are with each `B` counted twice.
    pub(super) fn steps(&self) -> usize {
        self.pairs * 3
    }

    /// A dense number for a step; a `B` has that of the `I` in whose stead it is.
    pub(super) fn index(&self, step: Step) -> usize {
        step.pass.place() * self.pairs + self.slots[step.slot].base + step.microbatch
    }

    pub(super) fn seconds(&self, step: Step) -> f64 {
        let slot = &self.slots[step.slot];
        if step.pass == Pass::Whole { slot.whole } else { slot.seconds[step.pass.place()] }
    }

    /// Bytes more at the start of a step, and fewer at its end.
    pub(super) fn bytes(&self, step: Step) -> (f64, f64) {
        let (slot, place) = (&self.slots[step.slot], step.pass.place());
        let fewer = if step.pass == Pass::Whole { slot.freed[1] + slot.freed[2] } else { slot.freed[place] };
        (slot.added[place], fewer)
    }

    /// Is every pass of every pair there once?
    pub(super) fn is_complete(&self, rows: &[Vec<Step>]) -> bool {
        rows.iter().flatten().map(|step| step.pass.does().len()).sum::<usize>() == self.steps()
    }

    /// The most bytes that a rank holds while it runs a row, messages left out.
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

    /// Is that within the cap, but for rounding?
    pub(super) fn fits(&self, bytes: f64) -> bool {
        bytes <= self.cap * (1.0 + 1e-12)
    }

    /// The most bytes that one backward adds on each rank, while it runs or until its `W`.
    pub(super) fn again(&self, whole: bool) -> Vec<f64> {
        let most = |of: &Vec<usize>| of.iter().map(|&slot| self.slots[slot].backward_adds(whole)).fold(0.0, f64::max);
        self.slots_of.iter().map(most).collect()
    }

    /// Seconds that no order can beat: the busiest rank with the shortest way to it and from it, or one microbatch's
    /// way there and back.
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

    /// The earliest that each slot's first `F` can start.
    pub(super) fn heads(&self) -> Vec<f64> {
        let mut heads = vec![0.0; self.slots.len()];
        for slot in 0..self.slots.len() {
            if let Some(crossing) = self.slots[slot].before {
                heads[slot] = heads[slot - 1] + self.slots[slot - 1].seconds[0] + crossing;
            }
        }
        heads
    }

    /// From the start of a slot's `F` to its gradient, at least.
    pub(super) fn least_way_back(&self, slot: usize) -> f64 {
        self.way_back(slot, |slot| slot.least_backward().1)
    }

    /// From the start of a slot's `F` to its gradient, which a backward takes so long to make.
    pub(super) fn way_back(&self, slot: usize, gradient_after: impl Fn(&Slot) -> f64 + Copy) -> f64 {
        let own = &self.slots[slot];
        let beyond = |back| self.to_next(slot) + self.way_back(slot + 1, gradient_after) + back;
        own.seconds[0] + own.after.map_or(0.0, beyond) + gradient_after(own)
    }

    fn to_next(&self, slot: usize) -> f64 {
        self.slots.get(slot + 1).and_then(|next| next.before).unwrap_or(0.0)
    }

    /// The rows as a plan of the same placement and microbatches.
    pub(super) fn actions(&self, costs: &Costs<'_>, rows: &[Vec<Step>]) -> Vec<Vec<Action>> {
        let stages: Vec<_> = costs.placement().all_stages().collect();
        let action = |step: &Step| {
            let (stage, microbatch) = (stages[step.slot], step.microbatch);
            match step.pass {
                Pass::Forward => Action::forward(stage, microbatch),
                Pass::Input => Action::backward_input(stage, microbatch),
                Pass::Weight => Action::backward_weight(stage, microbatch),
                Pass::Whole => Action::backward(stage, microbatch),
            }
        };
        rows.iter().map(|row| row.iter().map(action).collect()).collect()
    }

    /// The steps of a plan of the same placement whose rows are single forwards and backwards; none where they are not.
    pub(super) fn rows_of(plan: &Plan) -> Option<Vec<Vec<Step>>> {
        use crate::plan::Op;
        let step = |task: Task| {
            let pass = match task.op() {
                Op::Forward => Pass::Forward,
                Op::BackwardInput => Pass::Input,
                Op::BackwardWeight => Pass::Weight,
                Op::Backward => Pass::Whole,
                _ => return None,
            };
            Some(Step { pass, slot: plan.placement().slot(task.stage()), microbatch: task.microbatch()? })
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

/// The same rows with the `W` of each slot in the order of their `I`: microbatches are alike, so that loses nothing.
pub(super) fn in_turn(rows: &mut [Vec<Step>]) {
    for row in rows {
        let mut owed: HashMap<usize, VecDeque<usize>> = HashMap::new();
        for step in row {
            let of_slot = owed.entry(step.slot).or_default();
            match step.pass {
                Pass::Input => of_slot.push_back(step.microbatch),
                Pass::Weight => step.microbatch = of_slot.pop_front().unwrap_or(step.microbatch),
                Pass::Forward | Pass::Whole => {}
            }
        }
    }
}

/// The same rows with each `I` that a `W` of its slot follows at once as a `B`.
pub(super) fn joined(rows: &[Vec<Step>]) -> Vec<Vec<Step>> {
    let join = |row: &Vec<Step>| {
        let mut joined: Vec<Step> = Vec::with_capacity(row.len());
        for &step in row {
            match joined.last_mut() {
                Some(last) if (last.pass, step.pass, last.slot) == (Pass::Input, Pass::Weight, step.slot) => {
                    last.pass = Pass::Whole;
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
