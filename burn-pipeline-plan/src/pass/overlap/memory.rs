//! A running count of memory along a row while cells are swapped.
//!
//! Guarantees: after any number of [`raise`](Order::raise)s and [`sink`](Order::sink)s the levels equal those of a
//! recount along the new order ([`Order::recounts`] compares them; see
//! [`OverlapOptions::recount`](super::OverlapOptions)). A swap of a group with one cell takes time only in the
//! group.
//!
//! ```text
//! before   .. candidate [group] ..     after   .. [group] candidate ..
//! ```
//!
//! Only the levels of the candidate and the group change, since the sum of both is the same before and after.
//! Follows the iterative update of PyTorch's `reorder_communication_preserving_peak_memory`.

use super::cell::{Cell, NONE};

/// The level before a cell runs (with its allocation) and after it (without what it frees).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Level {
    pub(super) before: i64,
    pub(super) after: i64,
}

/// The levels along an order, by cell.
pub(super) fn recount(cells: &[Cell], order: impl IntoIterator<Item = u32>) -> Vec<Level> {
    let mut levels = vec![Level::default(); cells.len()];
    let mut now = 0;
    for cell in order {
        let Cell { alloc, free, .. } = cells[cell as usize];
        levels[cell as usize] = Level { before: now + alloc, after: now + alloc - free };
        now += alloc - free;
    }
    levels
}

/// The highest level of a row.
pub(super) fn peak(levels: &[Level]) -> i64 {
    levels.iter().map(|level| level.before).max().unwrap_or(0)
}

/// A row as a linked list, with its levels.
#[derive(Clone, Debug)]
pub(super) struct Order<'a> {
    pub(super) cells: &'a [Cell],
    pub(super) next: Vec<u32>,
    pub(super) previous: Vec<u32>,
    head: u32,
    pub(super) levels: Vec<Level>,
}

impl<'a> Order<'a> {
    /// The cells in their original order.
    pub(super) fn new(cells: &'a [Cell]) -> Self {
        let count = cells.len() as u32;
        let link = |cell: u32| if cell < count { cell } else { NONE };
        Self {
            cells,
            next: (0..count).map(|cell| link(cell + 1)).collect(),
            previous: (0..count).map(|cell| cell.checked_sub(1).unwrap_or(NONE)).collect(),
            head: link(0),
            levels: recount(cells, 0..count),
        }
    }

    /// The cells in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors((self.head != NONE).then_some(self.head), |&cell| {
            Some(self.next[cell as usize]).filter(|&next| next != NONE)
        })
    }

    /// Returns true if the levels equal those of a recount.
    pub(super) fn recounts(&self) -> bool {
        self.levels == recount(self.cells, self.iter())
    }

    /// The peak of `candidate` and the group after it, if they were swapped.
    pub(super) fn peak_if_raised(&self, candidate: u32, group: &[u32]) -> i64 {
        let Cell { alloc, free, .. } = self.cells[candidate as usize];
        let shift = free - alloc;
        let highest = group.iter().map(|&cell| self.levels[cell as usize].before + shift).max().unwrap_or(i64::MIN);
        let end = group.last().map_or(0, |&cell| self.levels[cell as usize].after + shift);
        highest.max(end + alloc)
    }

    /// The peak of a group and `candidate` after it, if they were swapped.
    pub(super) fn peak_if_sunk(&self, group: &[u32], candidate: u32) -> i64 {
        let Cell { alloc, free, .. } = self.cells[candidate as usize];
        let highest = group.iter().map(|&cell| self.levels[cell as usize].before + alloc - free).max();
        highest.unwrap_or(i64::MIN).max(self.level_before(group) + alloc)
    }

    /// Moves the group, which is right after `candidate`, before it.
    pub(super) fn raise(&mut self, candidate: u32, group: &[u32]) {
        let Cell { alloc, free, .. } = self.cells[candidate as usize];
        self.shift(group, free - alloc);
        let end = group.last().map_or(0, |&cell| self.levels[cell as usize].after);
        self.levels[candidate as usize] = Level { before: end + alloc, after: end + alloc - free };
        self.relink(&[candidate], group);
    }

    /// Moves the group, which is right before `candidate`, after it.
    pub(super) fn sink(&mut self, group: &[u32], candidate: u32) {
        let Cell { alloc, free, .. } = self.cells[candidate as usize];
        let start = self.level_before(group);
        self.levels[candidate as usize] = Level { before: start + alloc, after: start + alloc - free };
        self.shift(group, alloc - free);
        self.relink(group, &[candidate]);
    }

    fn level_before(&self, group: &[u32]) -> i64 {
        let first = group.first().map_or(NONE, |&cell| self.previous[cell as usize]);
        if first == NONE { 0 } else { self.levels[first as usize].after }
    }

    fn shift(&mut self, group: &[u32], by: i64) {
        for &cell in group {
            let level = &mut self.levels[cell as usize];
            *level = Level { before: level.before + by, after: level.after + by };
        }
    }

    /// Turns `.. first second ..` into `.. second first ..`.
    fn relink(&mut self, first: &[u32], second: &[u32]) {
        let (Some(&a), Some(&b), Some(&c), Some(&d)) = (first.first(), first.last(), second.first(), second.last())
        else {
            return;
        };
        let (before, after) = (self.previous[a as usize], self.next[d as usize]);
        self.link(before, c);
        self.link(d, a);
        self.link(b, after);
    }

    fn link(&mut self, from: u32, to: u32) {
        match from {
            NONE => self.head = to,
            from => self.next[from as usize] = to,
        }
        if to != NONE {
            self.previous[to as usize] = from;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cell::Role;
    use super::*;
    use crate::plan::Action;
    use proptest::prelude::{any, prop, proptest};

    fn cell((alloc, free): (u16, u16)) -> Cell {
        let (alloc, free) = (i64::from(alloc), i64::from(free));
        Cell { action: Action::Idle, role: Role::Compute, seconds: 0.0, comm: 0.0, alloc, free, partner: NONE }
    }

    proptest! {
        #[test]
        fn levels_kept_up_to_date_are_those_of_a_recount_at_every_swap(
            amounts in prop::collection::vec((any::<u16>(), any::<u16>()), 2..20),
            moves in prop::collection::vec((any::<usize>(), 1..4usize, any::<bool>()), 1..40),
        ) {
            let cells: Vec<Cell> = amounts.into_iter().map(cell).collect();
            let mut order = Order::new(&cells);
            for (at, size, up) in moves {
                let row: Vec<u32> = order.iter().collect();
                let size = size.min(row.len() - 1);
                let at = at % (row.len() - size);
                let expected = if up {
                    let (candidate, group) = (row[at], &row[at + 1..=at + size]);
                    let expected = order.peak_if_raised(candidate, group);
                    order.raise(candidate, group);
                    expected
                } else {
                    let (group, candidate) = (&row[at..at + size], row[at + size]);
                    let expected = order.peak_if_sunk(group, candidate);
                    order.sink(group, candidate);
                    expected
                };
                assert_eq!(order.levels, recount(&cells, order.iter()));
                let now: Vec<u32> = order.iter().collect();
                assert_eq!(now.len(), row.len());
                let moved = &now[at..=at + size];
                assert_eq!(expected, moved.iter().map(|&c| order.levels[c as usize].before).max().unwrap());
            }
        }
    }
}
