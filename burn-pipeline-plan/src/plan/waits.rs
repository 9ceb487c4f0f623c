//! Finds the starts that have their own wait, cell by cell.
//!
//! Guarantees: linear in the plan, without hashing. Any plan is accepted, even one that [`check`](super::check)
//! refuses (a stage outside the placement has no wait). A plan without waits costs one scan and no table.
//!
//! 1. Each row is read backwards. A wait leaves a note for its pair of stage and microbatch, or for its stage.
//! 2. The start before it finds the note, removes it, and counts as awaited. So if a stage is gathered several
//!    times, each `UNSHARD` gets the wait that follows it.

use super::action::Action;
use super::edges::Edges;
use super::op::Op;
use super::rows::Plan;
use super::task::Task;

/// For each cell of each row: true if it starts an operation that has its own wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct Awaited(Vec<Vec<bool>>);

impl Awaited {
    /// Reads the waits of a plan.
    pub(crate) fn new(plan: &Plan, edges: &Edges) -> Self {
        if !plan.has_waits() || edges.is_sparse(plan) {
            return Self::default();
        }
        let (pairs, slots) = (vec![0; edges.pairs()], vec![0; edges.slots().len()]);
        let mut notes = Notes { pairs, slots, skips: vec![0; edges.skip_pairs()], edges };
        let row = |row: &Vec<Action>| {
            let mut awaited = vec![false; row.len()];
            for (step, action) in row.iter().enumerate().rev() {
                if let Action::Single(task) = *action {
                    awaited[step] = notes.take(task);
                }
            }
            awaited
        };
        Self(plan.rows().iter().map(row).collect())
    }

    /// Returns true if the operation that this cell starts has its own wait.
    #[inline]
    pub(crate) fn at(&self, rank: usize, step: usize) -> bool {
        self.0.get(rank).is_some_and(|row| row[step])
    }
}

struct Notes<'a> {
    pairs: Vec<u8>,
    slots: Vec<u8>,
    /// Indexed by skip-edge value.
    skips: Vec<u8>,
    edges: &'a Edges,
}

impl Notes<'_> {
    /// Notes a wait. For a start: removes the note of its wait, and returns true if there was one.
    fn take(&mut self, task: Task) -> bool {
        let Some(bit) = bit(task.op().awaits().unwrap_or(task.op())) else { return false };
        let Some(slot) = self.edges.find(task.stage()) else { return false };
        let at = &self.edges.slots()[slot];
        let notes = match task.microbatch() {
            Some(microbatch) if task.is_skip() => {
                let skip = self.edges.find_skip(task).map(|number| self.edges.skips()[number]);
                match skip.filter(|_| microbatch < at.microbatches) {
                    Some(skip) => &mut self.skips[skip.base + microbatch],
                    None => return false,
                }
            }
            None => &mut self.slots[slot],
            Some(microbatch) if microbatch < at.microbatches => &mut self.pairs[at.base + microbatch],
            Some(_) => return false,
        };
        if task.op().is_wait() {
            *notes |= bit;
            return false;
        }
        let noted = *notes & bit != 0;
        *notes &= !bit;
        noted
    }
}

/// The bit of the note for an operation that can be awaited.
fn bit(start: Op) -> Option<u8> {
    match start {
        Op::Unshard => Some(16),
        Op::ReduceGrad => Some(32),
        _ => start.transfer_kind().map(|kind| 1 << kind),
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
