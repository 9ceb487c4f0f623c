//! The order in which a rank of a looped placement visits its chunks, for the interleaved schedules.
//!
//! Guarantees: every (microbatch, chunk) pair once; O(1) time per action, and all rows share one list of these pairs.
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

    pub(super) fn largest(self) -> usize {
        [self.head, self.tail].into_iter().filter(|&(count, _)| count > 0).map(|(_, size)| size).max().unwrap_or(0)
    }

    /// The virtual table: (microbatch, chunk), group by group, chunk by chunk.
    pub(super) fn table(self, chunks: usize) -> Vec<(usize, usize)> {
        let sizes = [self.head, self.tail].into_iter().flat_map(|(count, size)| std::iter::repeat_n(size, count));
        let microbatches: usize = [self.head, self.tail].iter().map(|(count, size)| count * size).sum();
        let (mut table, mut begin) = (Vec::with_capacity(microbatches * chunks), 0);
        for size in sizes {
            table.extend((0..chunks).flat_map(|chunk| (begin..begin + size).map(move |m| (m, chunk))));
            begin += size;
        }
        table
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

/// One rank's row over the virtual table: `warmup` forwards, then forward and backward in turn, then the remaining
/// backwards.
pub(super) fn row(table: &[(usize, usize)], size: Size, rank: usize, warmup: usize, backward: Backward) -> Vec<Action> {
    let stage = |chunk: usize| StageId::new(chunk * size.ranks + rank);
    let last = size.chunks - 1;
    let forward = |&(m, chunk): &(usize, usize)| Action::forward(stage(chunk), m);
    let weight = |&(m, chunk): &(usize, usize)| Action::backward_weight(stage(last - chunk), m);
    let (first, rest) = table.split_at(warmup.min(table.len()));
    let mut row = Vec::with_capacity(table.len() * if backward == Backward::Whole { 2 } else { 3 });
    row.extend(first.iter().map(forward));
    let mut forwards = rest.iter().map(forward);
    for (done, &(m, chunk)) in table.iter().enumerate() {
        row.extend(forwards.next());
        match backward {
            Backward::Whole => row.push(Action::backward(stage(last - chunk), m)),
            Backward::Split { lag } => {
                row.push(Action::backward_input(stage(last - chunk), m));
                row.extend(done.checked_sub(lag).map(|earlier| weight(&table[earlier])));
            }
        }
    }
    if let Backward::Split { lag } = backward {
        row.extend(table[table.len().saturating_sub(lag)..].iter().map(weight));
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
