//! Finds the starts that have their own wait, cell by cell.
//!
//! Guarantees: linear in the plan, hashing only values of skip edges. Any plan is accepted, even one that
//! [`check`](super::check) refuses (a stage outside the placement has no wait). A plan without waits costs one scan and
//! no table.
//!
//! 1. Each row is read backwards. A wait leaves a note for its pair of stage and microbatch, or for its stage.
//! 2. The start before it finds the note, removes it, and counts as awaited. So if a stage is gathered several
//!    times, each `UNSHARD` gets the wait that follows it.

use super::action::Action;
use super::edges::Edges;
use super::op::Op;
use super::rows::Plan;
use super::task::Task;
use std::collections::HashMap;

/// No wait.
const NONE: u32 = u32::MAX;

/// For each cell of each row: the step of the wait for the operation that it starts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Awaited(Vec<Vec<u32>>);

impl Awaited {
    /// Reads the waits of a plan.
    pub(crate) fn new(plan: &Plan, edges: &Edges) -> Self {
        if !plan.has_waits() || edges.is_sparse(plan) {
            return Self::default();
        }
        let mut notes = Notes {
            pairs: vec![[NONE; 4]; edges.pairs()],
            slots: vec![[NONE; 2]; edges.slots().len()],
            skips: HashMap::new(),
            edges,
        };
        let row = |row: &Vec<Action>| {
            let mut awaited = vec![NONE; row.len()];
            for (step, action) in row.iter().enumerate().rev() {
                let Action::Single(task) = *action else { continue };
                let Some(note) = notes.entry(task) else { continue };
                match task.op().is_wait() {
                    true => *note = step as u32,
                    false => awaited[step] = std::mem::replace(note, NONE),
                }
            }
            awaited
        };
        Self(plan.rows().iter().map(row).collect())
    }

    /// The step of the wait for the operation that this cell starts, if it has its own wait.
    #[inline]
    pub(crate) fn wait_of(&self, rank: usize, step: usize) -> Option<usize> {
        self.0.get(rank).map(|row| row[step]).filter(|&wait| wait != NONE).map(|wait| wait as usize)
    }

    /// Returns true if the operation that this cell starts has its own wait.
    #[inline]
    pub(crate) fn at(&self, rank: usize, step: usize) -> bool {
        self.wait_of(rank, step).is_some()
    }
}

/// The next wait of each value and of each stage's collectives, by its start.
struct Notes<'a> {
    pairs: Vec<[u32; 4]>,
    slots: Vec<[u32; 2]>,
    /// By skip-edge value, for those that a row names.
    skips: HashMap<usize, [u32; 4]>,
    edges: &'a Edges,
}

impl Notes<'_> {
    /// The note of a start, or of a wait's start.
    fn entry(&mut self, task: Task) -> Option<&mut u32> {
        let start = task.op().awaits().unwrap_or(task.op());
        let slot = self.edges.find(task.stage())?;
        match start {
            Op::Unshard => return Some(&mut self.slots[slot][0]),
            Op::ReduceGrad => return Some(&mut self.slots[slot][1]),
            _ => {}
        }
        let (kind, at) = (start.transfer_kind()?, &self.edges.slots()[slot]);
        let microbatch = task.microbatch().filter(|&microbatch| microbatch < at.microbatches)?;
        if task.is_skip() {
            let skip = self.edges.skips()[self.edges.find_skip(task)?];
            return Some(&mut self.skips.entry(skip.base + microbatch).or_insert([NONE; 4])[kind]);
        }
        Some(&mut self.pairs[at.base + microbatch][kind])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_start_finds_the_wait_that_follows_it() {
        let text = "0UNSHARD,0WAIT_UNSHARD,0F0,0SEND_F0,0RESHARD,0UNSHARD,0RECV_B0,0WAIT_RECV_B0,0B0,0WAIT_SEND_F0\n\
                    1RECV_F0,1F0,1B0,1SEND_B0\n";
        let plan = Plan::from_csv("waits", text).unwrap();
        let awaited = Awaited::new(&plan, &Edges::new(&plan));
        let steps = |rank: usize| (0..plan.row(rank).len()).filter(|&s| awaited.at(rank, s)).collect::<Vec<_>>();
        assert_eq!((steps(0), steps(1)), (vec![0, 3, 6], vec![]));
    }
}
