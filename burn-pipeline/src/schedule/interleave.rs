//! The order in which a rank of a looped placement visits its chunks, shared by the interleaved families.
//!
//! Guarantees: every (microbatch, chunk) pair once; O(1) an action, nothing allocated but the row.
//!
//! 1. Microbatches are cut into consecutive groups ([`Groups`]).
//! 2. A group goes through the rank's first chunk as a whole, then through its second, and so on; backwards take
//!    the same pairs with the chunks from last to first. This list is Megatron's virtual index table.
//! 3. A row is some warm-up forwards, then forward and backward in turn, then the backwards that are left; a
//!    backward is whole, or cut with its `W` some backwards later ([`Backward`]).
//!
//! How short a group may be follows from the ring: rank 0 can start a group's next chunk once rank p-1 has done
//! the chunk before it. If rank 0 warms up `a(p-1)` forwards more than rank p-1 (`a` = 2 for 1F1B, 1 for zero
//! bubble), its backward of pair k waits in the row behind a forward that needs, over two chunk changes, rank
//! p-1's backward of pair `k - 2g + a(p-1) - 1`. That lies before k as long as `2g >= a(p-1)`.

use super::{ScheduleError, Size};
use crate::plan::{Action, Placement, Plan, Stage};
use std::ops::Range;

/// Microbatches cut into groups: some of one size, then some of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Groups {
    head: (usize, usize),
    tail: (usize, usize),
}

impl Groups {
    /// As many groups of at least `shortest` as fit (one, if none does), as even as can be, larger ones first.
    ///
    /// Where the groups come out even this is PyTorch's `microbatches_per_round`.
    pub(super) fn even(microbatches: usize, shortest: usize) -> Self {
        let count = (microbatches / shortest.max(1)).max(1);
        let (size, larger) = (microbatches / count, microbatches % count);
        Self { head: (larger, size + 1), tail: (count - larger, size) }
    }

    /// Groups of exactly `size`; a remainder of at least `shortest` makes a group of its own (Megatron's rule), a
    /// shorter one joins the group before it.
    pub(super) fn exact(microbatches: usize, size: usize, shortest: usize) -> Self {
        let (count, rest) = (microbatches / size, microbatches % size);
        match (count, rest) {
            (0, rest) => Self { head: (0, 0), tail: (1, rest) },
            (count, rest) if rest == 0 || rest >= shortest => {
                Self { head: (count, size), tail: (usize::from(rest > 0), rest) }
            }
            (count, rest) => Self { head: (count - 1, size), tail: (1, size + rest) },
        }
    }

    /// Size of the largest group.
    pub(super) fn largest(self) -> usize {
        [self.head, self.tail].into_iter().filter(|&(count, _)| count > 0).map(|(_, size)| size).max().unwrap_or(0)
    }

    fn microbatches(self) -> usize {
        self.head.0 * self.head.1 + self.tail.0 * self.tail.1
    }

    fn ranges(self) -> impl Iterator<Item = Range<usize>> + Clone {
        let (head, tail) = (self.head, self.tail);
        let after = head.0 * head.1;
        let first = (0..head.0).map(move |g| g * head.1..(g + 1) * head.1);
        first.chain((0..tail.0).map(move |g| after + g * tail.1..after + (g + 1) * tail.1))
    }

    /// The virtual table: (microbatch, chunk), group by group, chunk by chunk.
    fn pairs(self, chunks: usize) -> impl Iterator<Item = (usize, usize)> + Clone {
        self.ranges().flat_map(move |group| (0..chunks).flat_map(move |c| group.clone().map(move |m| (m, c))))
    }
}

/// How a family writes down its backwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Backward {
    /// `B`.
    Whole,
    /// `I`, with the `W` of this many backwards ago after it.
    Split {
        /// How many backwards lie between an `I` and its `W` (0: right after).
        lag: usize,
    },
}

/// One rank's row: `warmup` forwards, then forward and backward in turn, then what is left.
pub(super) fn row(groups: Groups, size: Size, rank: usize, warmup: usize, backward: Backward) -> Vec<Action> {
    let stage = |chunk: usize| Stage::new(chunk * size.ranks + rank);
    let total = groups.microbatches() * size.chunks;
    let mut forwards = groups.pairs(size.chunks).map(|(m, c)| Action::forward(stage(c), m));
    let backwards = groups.pairs(size.chunks).map(|(m, c)| (stage(size.chunks - 1 - c), m));
    let mut weights = backwards.clone().map(|(stage, m)| Action::backward_weight(stage, m));

    let mut row = Vec::with_capacity(total * if backward == Backward::Whole { 2 } else { 3 });
    row.extend(forwards.by_ref().take(warmup.min(total)));
    for (done, (stage, m)) in backwards.enumerate() {
        row.extend(forwards.next());
        match backward {
            Backward::Whole => row.push(Action::backward(stage, m)),
            Backward::Split { lag } => {
                row.push(Action::backward_input(stage, m));
                if done >= lag {
                    row.extend(weights.next());
                }
            }
        }
    }
    if backward != Backward::Whole {
        row.extend(weights);
    }
    row
}

/// A plan on the looped placement whose rows are made by `row_of`.
pub(super) fn plan(
    name: &'static str,
    size: Size,
    row_of: impl Fn(usize) -> Vec<Action>,
) -> Result<Plan, ScheduleError> {
    let placement = Placement::looped(size.ranks, size.chunks)?;
    Ok(Plan::new(name, placement, vec![size.microbatches], (0..size.ranks).map(row_of).collect())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(groups: Groups) -> Vec<usize> {
        groups.ranges().map(|g| g.len()).collect()
    }

    #[test]
    fn groups_are_even_and_never_shorter_than_asked_while_there_is_more_than_one() {
        assert_eq!(sizes(Groups::even(12, 4)), [4, 4, 4]);
        assert_eq!(sizes(Groups::even(10, 4)), [5, 5]);
        assert_eq!(sizes(Groups::even(14, 4)), [5, 5, 4]);
        assert_eq!(sizes(Groups::even(3, 4)), [3]);
    }

    #[test]
    fn a_remainder_stands_alone_only_if_it_is_long_enough() {
        assert_eq!(sizes(Groups::exact(16, 6, 4)), [6, 6, 4]);
        assert_eq!(sizes(Groups::exact(15, 6, 4)), [6, 9]);
        assert_eq!(sizes(Groups::exact(12, 6, 4)), [6, 6]);
        assert_eq!(sizes(Groups::exact(5, 6, 4)), [5]);
        assert_eq!(Groups::exact(15, 6, 4).largest(), 9);
    }

    #[test]
    fn the_virtual_table_takes_a_group_through_all_chunks() {
        let pairs: Vec<_> = Groups::even(5, 2).pairs(2).collect();
        assert_eq!(pairs, [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (3, 0), (4, 0), (3, 1), (4, 1)]);
    }
}
