//! What the synthesis knows of a placement and its costs, flat and numbered.
//!
//! Guarantees: nothing here depends on the order of anything but the numbers given.
//!
//! 1. Stages of all replicas are *slots* in [`Placement::slot`] order; the pairs (slot, microbatch) follow one another
//!    as in the passes, so that a neighbour's pair is found by adding or subtracting the microbatch count.
//! 2. Where backwards are not split, `I` stands for the whole `B` and there is no `W`.
//! 3. Along a row memory does not depend on times: `F` holds its activations from its start, and while it runs what
//!    will be recomputed; `I` holds that again from its start and gives back its part at its end (or leaves more than
//!    it gives back), `W` gives back the rest.

use crate::cost::Costs;
use crate::plan::{Action, Plan, Task};

/// What a step computes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Pass {
    Forward,
    Input,
    Weight,
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
    /// Bytes that `F`, `I` and `W` add at their starts.
    pub(super) added: [f64; 3],
    /// Bytes that they give back at their ends.
    pub(super) freed: [f64; 3],
}

impl Slot {
    /// Bytes that one `I` adds at most, while it runs or when it is over.
    pub(super) fn backward_adds(&self) -> f64 {
        self.added[1].max(self.added[1] - self.freed[1])
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
    /// The most bytes that one backward adds on each rank, while it runs or until its `W`.
    pub(super) again: Vec<f64>,
    /// Bytes of parameters on each rank.
    pub(super) weights: Vec<f64>,
    pub(super) cap: f64,
    /// Are backwards split into `I` and `W`?
    pub(super) split: bool,
    pub(super) pairs: usize,
}

impl Instance {
    pub(super) fn new(costs: &Costs<'_>, microbatches: &[usize], cap: f64, split: bool) -> Self {
        let placement = costs.placement();
        let (mut pairs, mut slots) = (0, Vec::with_capacity(placement.slots()));
        for stage in placement.all_stages() {
            let (cost, rank, count) = (costs.stage(stage), placement.rank_of(stage), microbatches[stage.replica()]);
            let crossing = |from, to, output_of| costs.crossing_seconds(from, to, output_of);
            let all = cost.activation_bytes + cost.recomputed_bytes;
            let freed = if split { cost.freed_at_input_bytes } else { all };
            let (input, weight) = (cost.input_backward(), cost.weight_backward());
            slots.push(Slot {
                rank,
                base: pairs,
                microbatches: count,
                before: stage.previous().map(|previous| crossing(placement.rank_of(previous), rank, previous)),
                after: placement.next(stage).map(|next| crossing(placement.rank_of(next), rank, stage)),
                seconds: if split { [cost.forward, input, weight] } else { [cost.forward, cost.full_backward(), 0.0] },
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
        let most = |of: &Vec<usize>| of.iter().map(|&slot| slots[slot].backward_adds()).fold(0.0, f64::max);
        let again = slots_of.iter().map(most).collect();
        Self { slots, slots_of, last_of, again, weights, cap, split, pairs }
    }

    /// The same in which each backward takes the less of both forms, for bounds.
    pub(super) fn relaxed(&self, whole: &Self) -> Self {
        let mut relaxed = self.clone();
        for (slot, whole) in relaxed.slots.iter_mut().zip(&whole.slots) {
            let ([forward, input, weight], backward) = (slot.seconds, whole.seconds[1]);
            let first = input.min(backward);
            slot.seconds = [forward, first, backward.min(input + weight) - first];
        }
        relaxed
    }

    pub(super) fn ranks(&self) -> usize {
        self.slots_of.len()
    }

    /// The passes that each pair goes through.
    pub(super) fn passes(&self) -> usize {
        if self.split { 3 } else { 2 }
    }

    /// Steps of the whole plan.
    pub(super) fn steps(&self) -> usize {
        self.pairs * self.passes()
    }

    /// A dense number for a step.
    pub(super) fn index(&self, step: Step) -> usize {
        step.pass as usize * self.pairs + self.slots[step.slot].base + step.microbatch
    }

    pub(super) fn seconds(&self, step: Step) -> f64 {
        self.slots[step.slot].seconds[step.pass as usize]
    }

    /// Bytes more at the start of a step, and fewer at its end.
    pub(super) fn bytes(&self, step: Step) -> (f64, f64) {
        let slot = &self.slots[step.slot];
        (slot.added[step.pass as usize], slot.freed[step.pass as usize])
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

    /// Seconds that no order can beat: the busiest rank with the shortest way to it and from it, or one microbatch's
    /// way there and back.
    pub(super) fn lower_bound(&self) -> f64 {
        let mut bound: f64 = 0.0;
        let heads = self.heads();
        for slots in &self.slots_of {
            let used = || slots.iter().filter(|&&slot| self.slots[slot].microbatches > 0);
            let work: f64 =
                used().map(|&s| self.slots[s].microbatches as f64 * self.slots[s].seconds.iter().sum::<f64>()).sum();
            let head = used().map(|&slot| heads[slot]).fold(f64::INFINITY, f64::min);
            let tail = used().map(|&slot| self.shortest_tail(slot)).fold(f64::INFINITY, f64::min);
            if head.is_finite() {
                bound = bound.max(head + work + tail);
            }
        }
        let busy = self.slots.iter().enumerate().filter(|(_, slot)| slot.microbatches > 0);
        let there_and_back = busy.map(|(index, slot)| heads[index] + self.way_back(index) + slot.seconds[2]);
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

    /// From the start of a slot's `F` to the end of its `I`.
    pub(super) fn way_back(&self, slot: usize) -> f64 {
        let own = &self.slots[slot];
        own.seconds[0]
            + own.after.map_or(0.0, |back| self.to_next(slot) + self.way_back(slot + 1) + back)
            + own.seconds[1]
    }

    fn to_next(&self, slot: usize) -> f64 {
        self.slots.get(slot + 1).and_then(|next| next.before).unwrap_or(0.0)
    }

    /// What has to run elsewhere after the last thing that a rank may do for a slot. After a `W` that is nothing; after
    /// a last `I` or `B` it is the backwards down to the first stage.
    fn shortest_tail(&self, slot: usize) -> f64 {
        if self.split {
            return 0.0;
        }
        let mut tail = 0.0;
        let mut slot = slot;
        while self.slots[slot].before.is_some() {
            slot -= 1;
            tail += self.slots[slot].after.unwrap_or(0.0) + self.slots[slot].seconds[1];
        }
        tail
    }

    /// The rows as a plan of the same placement and microbatches.
    pub(super) fn actions(&self, costs: &Costs<'_>, rows: &[Vec<Step>]) -> Vec<Vec<Action>> {
        let stages: Vec<_> = costs.placement().all_stages().collect();
        let action = |step: &Step| {
            let (stage, microbatch) = (stages[step.slot], step.microbatch);
            match step.pass {
                Pass::Forward => Action::forward(stage, microbatch),
                Pass::Input if self.split => Action::backward_input(stage, microbatch),
                Pass::Input => Action::backward(stage, microbatch),
                Pass::Weight => Action::backward_weight(stage, microbatch),
            }
        };
        rows.iter().map(|row| row.iter().map(action).collect()).collect()
    }

    /// The steps of a plan of the same placement whose rows are single forwards and backwards in this instance's form;
    /// none where they are not.
    pub(super) fn rows_of(&self, plan: &Plan) -> Option<Vec<Vec<Step>>> {
        use crate::plan::Op;
        let step = |task: Task| {
            let pass = match (task.op(), self.split) {
                (Op::Forward, _) => Pass::Forward,
                (Op::BackwardInput, true) | (Op::Backward, false) => Pass::Input,
                (Op::BackwardWeight, true) => Pass::Weight,
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
