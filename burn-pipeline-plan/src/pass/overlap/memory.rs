//! A running count of memory along a row while cells are swapped.
//!
//! Guarantees: after any number of [`swap`](Order::swap)s the levels equal those of a [`recount`] along the new order.
//! A swap of two runs of cells takes time only in the runs.
//!
//! ```text
//! before   .. [first] [second] ..     after   .. [second] [first] ..
//! ```
//!
//! Only the levels of the two runs change, since the sum of both is the same before and after.
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

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors((self.head != NONE).then_some(self.head), |&cell| {
            Some(self.next[cell as usize]).filter(|&next| next != NONE)
        })
    }

    /// The peak of two neighbouring runs of cells, if they were swapped.
    pub(super) fn peak_if_swapped(&self, first: &[u32], second: &[u32]) -> i64 {
        let (less, more) = (self.net(first), self.net(second));
        let sooner = second.iter().map(|&cell| self.levels[cell as usize].before - less);
        let later = first.iter().map(|&cell| self.levels[cell as usize].before + more);
        sooner.chain(later).max().unwrap_or(0)
    }

    /// Swaps two neighbouring runs of cells.
    pub(super) fn swap(&mut self, first: &[u32], second: &[u32]) {
        let (less, more) = (self.net(first), self.net(second));
        self.shift(second, -less);
        self.shift(first, more);
        self.relink(first, second);
    }

    /// The memory that a run of cells takes and does not free.
    fn net(&self, run: &[u32]) -> i64 {
        run.iter().map(|&cell| self.cells[cell as usize].alloc - self.cells[cell as usize].free).sum()
    }

    fn shift(&mut self, run: &[u32], by: i64) {
        for &cell in run {
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
                let middle = if up { at + 1 } else { at + size };
                let (first, second) = (&row[at..middle], &row[middle..=at + size]);
                let expected = order.peak_if_swapped(first, second);
                order.swap(first, second);
                assert_eq!(order.levels, recount(&cells, order.iter()));
                let now: Vec<u32> = order.iter().collect();
                assert_eq!(now.len(), row.len());
                let moved = &now[at..=at + size];
                assert_eq!(expected, moved.iter().map(|&c| order.levels[c as usize].before).max().unwrap());
            }
        }
    }
}
