//! The order in which a rank of a looped placement visits its chunks, for the interleaved schedules.
//!
//! Guarantees: every (microbatch, chunk) pair once; O(1) time per action, and only the row is allocated.
//!
//! 1. Microbatches are cut into consecutive groups ([`Groups`]).
//! 2. A whole group goes through the rank's first chunk, then through its second, and so on. Backwards take the
//!    same pairs with the chunks from last to first. This list is Megatron's virtual index table.
//! 3. A row is some warm-up forwards, then forward and backward in turn, then the remaining backwards. A backward
//!    is whole, or split with its `W` some backwards later ([`Backward`]).
//!
//! Why groups have a minimum size: the ranks form a ring, and rank 0 can start a group's next chunk only after rank
//! p-1 has finished the previous chunk. Rank 0 warms up `a(p-1)` forwards more than rank p-1 (`a` = 2 for 1F1B, 1
//! for zero bubble). In its row, the backward of pair k follows a forward. Over two changes of chunk, that forward
//! depends on rank p-1's backward of pair `k - 2g + a(p-1) - 1`. There is no cycle if that pair comes before k,
//! which holds for `2g >= a(p-1)`.

use super::schedule_trait::{ScheduleError, ScheduleInfo, Size};
use crate::plan::{Action, StageId};
use std::ops::Range;

/// Microbatches cut into groups: `head` is (count, size) of the first groups, `tail` of the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Groups {
    head: (usize, usize),
    tail: (usize, usize),
}

impl Groups {
    /// As many groups of at least `shortest` as fit (at least one), as even as possible, larger ones first.
    ///
    /// If all groups have one size, it is PyTorch's `microbatches_per_round`.
    pub(super) fn even(microbatches: usize, shortest: usize) -> Self {
        let count = (microbatches / shortest.max(1)).max(1);
        let (size, larger) = (microbatches / count, microbatches % count);
        Self { head: (larger, size + 1), tail: (count - larger, size) }
    }

    /// Groups of exactly `size`. A remainder of at least `shortest` forms its own group (Megatron's rule); a
    /// shorter one joins the previous group.
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

    /// The groups of a schedule's `group` option: about p microbatches if `None`, else exactly that many. A remainder
    /// shorter than `remainder` joins the previous group. Groups of fewer than `least` would deadlock, unless one
    /// group holds all microbatches.
    pub(super) fn from_option(
        schedule: &ScheduleInfo,
        size: Size,
        group: Option<usize>,
        least: usize,
        remainder: usize,
    ) -> Result<Self, ScheduleError> {
        match group {
            None => Ok(Self::even(size.microbatches, size.ranks)),
            Some(g) if g == 0 || (g < least && g < size.microbatches && size.chunks > 1) => {
                let accepts = format!("groups of at least {}, or one group of all microbatches", least.max(1));
                schedule.refuse(size, format!("groups of {g} would deadlock; it takes {accepts}"))
            }
            Some(g) => Ok(Self::exact(size.microbatches, g, remainder)),
        }
    }

    /// The size of the largest group.
    pub(super) fn largest(self) -> usize {
        [self.head, self.tail].into_iter().filter(|&(count, _)| count > 0).map(|(_, size)| size).max().unwrap_or(0)
    }

    fn microbatches(self) -> usize {
        self.head.0 * self.head.1 + self.tail.0 * self.tail.1
    }

    /// The virtual table as a list.
    pub(super) fn table(self, chunks: usize) -> Vec<(usize, usize)> {
        let mut pairs = self.pairs(chunks);
        (0..self.microbatches() * chunks).map(|_| pairs.step()).collect()
    }

    /// The virtual table: (microbatch, chunk), group by group, chunk by chunk.
    fn pairs(self, chunks: usize) -> Pairs {
        let whole = self.head.0 * self.head.1;
        let size = if self.head.0 > 0 { self.head.1 } else { self.tail.1 };
        Pairs { chunks, whole, tail: self.tail.1, group: 0..size, next: 0, chunk: 0 }
    }
}

/// Iterates over the virtual table of some [`Groups`] without end: the caller knows how many steps to take.
#[derive(Clone, Debug)]
struct Pairs {
    chunks: usize,
    /// The number of microbatches in groups of the first size.
    whole: usize,
    /// The size of the groups after them.
    tail: usize,
    group: Range<usize>,
    next: usize,
    chunk: usize,
}

impl Pairs {
    /// The next microbatch and its chunk.
    #[inline]
    fn step(&mut self) -> (usize, usize) {
        if self.next == self.group.end {
            self.turn();
        }
        self.next += 1;
        (self.next - 1, self.chunk)
    }

    /// Moves to the group's next chunk, or to the next group.
    fn turn(&mut self) {
        self.chunk += 1;
        if self.chunk == self.chunks {
            self.chunk = 0;
            let size = if self.group.end < self.whole { self.group.len() } else { self.tail };
            self.group = self.group.end..self.group.end + size;
        }
        self.next = self.group.start;
    }
}

/// How a schedule runs its backwards: whole, or split.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Backward {
    /// A whole `B`.
    Whole,
    /// An `I`, followed by the `W` of an earlier backward.
    Split {
        /// The number of backwards between an `I` and its `W`; with 0 the `W` follows at once.
        lag: usize,
    },
}

/// One rank's row: `warmup` forwards, then forward and backward in turn, then the remaining backwards.
pub(super) fn row(groups: Groups, size: Size, rank: usize, warmup: usize, backward: Backward) -> Vec<Action> {
    let stage = |chunk: usize| StageId::new(chunk * size.ranks + rank);
    let last = size.chunks - 1;
    let total = groups.microbatches() * size.chunks;
    let mut forwards = groups.pairs(size.chunks);
    let mut backwards = forwards.clone();
    let mut weights = forwards.clone();
    let mut forward = || {
        let (m, chunk) = forwards.step();
        Action::forward(stage(chunk), m)
    };
    let mut weight = || {
        let (m, chunk) = weights.step();
        Action::backward_weight(stage(last - chunk), m)
    };

    let warmup = warmup.min(total);
    let mut row = Vec::with_capacity(total * if backward == Backward::Whole { 2 } else { 3 });
    row.extend((0..warmup).map(|_| forward()));
    for done in 0..total {
        if done < total - warmup {
            row.push(forward());
        }
        let (m, chunk) = backwards.step();
        match backward {
            Backward::Whole => row.push(Action::backward(stage(last - chunk), m)),
            Backward::Split { lag } => {
                row.push(Action::backward_input(stage(last - chunk), m));
                if done >= lag {
                    row.push(weight());
                }
            }
        }
    }
    if let Backward::Split { lag } = backward {
        row.extend((0..lag.min(total)).map(|_| weight()));
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The group sizes, read from where the second chunk begins.
    fn sizes(groups: Groups) -> Vec<usize> {
        groups.table(2).chunk_by(|a, b| a.1 == b.1).step_by(2).map(<[_]>::len).collect()
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
        assert_eq!(
            Groups::even(5, 2).table(2),
            [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (3, 0), (4, 0), (3, 1), (4, 1)]
        );
    }
}
