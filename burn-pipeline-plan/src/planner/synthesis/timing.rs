//! The times of given rows: every step starts as early as its inputs and its rank allow.
//!
//! Guarantees: the makespan equals the simulator's for the same plan without transfers.

use super::instance::{Instance, Step, StepKind};

/// Starts and ends of all steps. The buffers are reused, since local search evaluates many thousand changes.
#[derive(Clone, Debug)]
pub(super) struct Timing {
    pub(super) start: Vec<f64>,
    pub(super) end: Vec<f64>,
    next: Vec<usize>,
    queue: Vec<usize>,
}

impl Timing {
    pub(super) fn new(instance: &Instance) -> Self {
        let steps = 3 * instance.pairs;
        Self { start: vec![0.0; steps], end: vec![f64::NAN; steps], next: vec![0; instance.ranks()], queue: Vec::new() }
    }

    /// Times the rows and returns their makespan; `None` if they deadlock.
    pub(super) fn run(&mut self, instance: &Instance, rows: &[Vec<Step>]) -> Option<f64> {
        self.end.fill(f64::NAN);
        self.next.fill(0);
        self.queue.clear();
        self.queue.extend((0..rows.len()).rev());
        let mut makespan: f64 = 0.0;
        while let Some(rank) = self.queue.pop() {
            let row = &rows[rank];
            let mut free = self.next[rank].checked_sub(1).map_or(0.0, |last| self.end[instance.index(row[last])]);
            while let Some(&step) = row.get(self.next[rank]) {
                let ready = instance.arrival(&self.end, step);
                if ready.is_nan() {
                    break;
                }
                let (index, start) = (instance.index(step), f64::max(free, ready));
                free = start + instance.seconds(step);
                self.start[index] = start;
                self.end[index] = free;
                self.next[rank] += 1;
                if let Some(other) = instance.user(step).filter(|&other| other != rank) {
                    self.queue.push(other);
                }
            }
            makespan = makespan.max(free);
        }
        let ended = rows.iter().zip(&self.next).all(|(row, &next)| row.len() == next);
        ended.then_some(makespan)
    }

    /// The steps of a longest chain, last step first, as (rank, index in the row).
    pub(super) fn critical(&self, instance: &Instance, rows: &[Vec<Step>], places: &[usize]) -> Vec<(usize, usize)> {
        let last = |rank: &usize| rows[*rank].last().map_or(0.0, |&step| self.end[instance.index(step)]);
        let Some(mut rank) = (0..rows.len()).max_by(|a, b| last(a).total_cmp(&last(b)).then(b.cmp(a))) else {
            return Vec::new();
        };
        let Some(mut place) = rows[rank].len().checked_sub(1) else { return Vec::new() };
        let mut chain = vec![(rank, place)];
        loop {
            let step = rows[rank][place];
            let start = self.start[instance.index(step)];
            let before = place.checked_sub(1).filter(|&p| self.end[instance.index(rows[rank][p])] >= start);
            if let Some(before) = before {
                place = before;
            } else {
                let Some(maker) = maker(instance, step) else { return chain };
                (rank, place) = (instance.slots[maker.slot].rank, places[instance.index(maker)]);
            }
            chain.push((rank, place));
        }
    }
}

/// The neighbour's step whose result a step waits for. It may be an `I` where the row has a `B`: both have the same
/// index.
fn maker(instance: &Instance, step: Step) -> Option<Step> {
    let slot = &instance.slots[step.slot];
    match step.kind {
        StepKind::Forward => slot.before.map(|_| Step { slot: step.slot - 1, ..step }),
        StepKind::Input | StepKind::Whole => slot.after.map(|_| Step { slot: step.slot + 1, ..step }),
        StepKind::Weight => None,
    }
}
