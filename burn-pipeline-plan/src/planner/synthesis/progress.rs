//! How far the rows of a synthesis have come (what the list scheduler and branch and bound know about a prefix of every
//! row), and when the inputs of further steps arrive.

use super::instance::{Instance, Step, StepKind};

/// A prefix of every row, with its times.
#[derive(Clone, Debug)]
pub(super) struct Progress {
    /// The numbers of `F`, `I` and `W` done by each slot; a `B` counts as an `I` and a `W`.
    pub(super) done: Vec<[usize; 3]>,
    /// When each rank is free.
    pub(super) clock: Vec<f64>,
    /// Bytes that each rank holds.
    pub(super) held: Vec<f64>,
    /// Ends of `F`, and of `I` or `B`, by the index of the step; NaN before.
    pub(super) ends: Vec<f64>,
}

impl Progress {
    /// No step is done.
    pub(super) fn new(instance: &Instance) -> Self {
        Self {
            done: vec![[0; 3]; instance.slots.len()],
            clock: vec![0.0; instance.ranks()],
            held: instance.weights.clone(),
            ends: vec![f64::NAN; 2 * instance.pairs],
        }
    }

    /// Adds a step to its rank's row.
    pub(super) fn run(&mut self, instance: &Instance, start: f64, step: Step) {
        let rank = instance.slots[step.slot].rank;
        let (end, (more, fewer)) = (start + instance.seconds(step), instance.bytes(step));
        self.clock[rank] = end;
        self.held[rank] += more - fewer;
        step.kind.does().iter().for_each(|&kind| self.done[step.slot][kind] += 1);
        // Nothing waits for the end of a `W`, so there is no entry for it.
        if let Some(entry) = self.ends.get_mut(instance.index(step)) {
            *entry = end;
        }
    }
}

impl Instance {
    /// The time at which the inputs of a step arrive, given the ends of steps by index; NaN until all have been made.
    pub(super) fn arrival(&self, ends: &[f64], step: Step) -> f64 {
        let (slot, index) = (&self.slots[step.slot], self.index(step));
        match (step.kind, slot.before, slot.after) {
            (StepKind::Forward, None, _) => 0.0,
            (StepKind::Forward, Some(crossing), _) => ends[index - slot.microbatches] + crossing,
            (StepKind::Weight, ..) | (_, _, None) => ends[index - self.pairs],
            (_, _, Some(crossing)) => {
                let (own, gradient) = (ends[index - self.pairs], ends[index + slot.microbatches] + crossing);
                // `max` would ignore a NaN and return the known time.
                if own.is_nan() || gradient.is_nan() { f64::NAN } else { own.max(gradient) }
            }
        }
    }

    /// The rank that uses the result of a step.
    pub(super) fn user(&self, step: Step) -> Option<usize> {
        let slot = &self.slots[step.slot];
        match step.kind {
            StepKind::Forward => slot.after.map(|_| self.slots[step.slot + 1].rank),
            StepKind::Input | StepKind::Whole => slot.before.map(|_| self.slots[step.slot - 1].rank),
            StepKind::Weight => None,
        }
    }
}
