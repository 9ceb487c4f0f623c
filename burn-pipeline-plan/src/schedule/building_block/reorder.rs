//! Moves the operations of warm-up and cool-down to earlier slots without raising the peak of activations.
//!
//! 1. Operations are visited in running order. The warm-up ends with rank 0's first B0, the cool-down begins with
//!    the last microbatch's F0; the steady phase between them stays.
//! 2. An operation may move to any free slot after its latest input. It takes the first one that keeps its rank's
//!    activations at or below the peak of all ranks in the original order.
//! 3. A rank's memory is a running count by slot ([`Rank`]). A move changes it only between the new slot and the
//!    old one, so it is recounted from the new slot until it equals the old count.

use super::slots::{B0, B1, F0, F1, Slots, W, in_order, latest_input, occupancy};

/// One rank's slots, and the memory held after each.
struct Rank {
    cells: Vec<Option<usize>>,
    after: Vec<Memory>,
    weights_fill: bool,
}

/// Activations held (in chunks), and W that are due, i.e. that have not run although their backward has.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Memory {
    activations: usize,
    due: usize,
}

impl Memory {
    /// The memory after a slot. With `weights_fill`, a free slot runs a W if one is due.
    fn then(self, cell: Option<usize>, weights_fill: bool) -> Self {
        let Memory { activations, due } = self;
        match cell {
            Some(F0 | F1) => Memory { activations: activations + 1, due },
            Some(B1 | B0) => Memory { activations, due: due + 1 },
            Some(_) => Memory { activations: activations.saturating_sub(1), due: due.saturating_sub(1) },
            None if weights_fill && due > 0 => Memory { activations: activations - 1, due: due - 1 },
            None => self,
        }
    }
}

impl Rank {
    fn new(slots: &Slots, weights_fill: bool) -> Self {
        let cells: Vec<Option<usize>> = occupancy(slots).into_iter().map(|cell| cell.map(|(pass, _)| pass)).collect();
        let mut held = Memory::default();
        let count = |&cell: &Option<usize>| {
            held = held.then(cell, weights_fill);
            held
        };
        let after = cells.iter().map(count).collect();
        Self { cells, after, weights_fill }
    }

    fn peak(&self) -> usize {
        self.after.iter().map(|held| held.activations).max().unwrap_or(0)
    }

    /// Moves the operation at slot `from` to the free slot `to` before it, or returns the slot that exceeds the
    /// cap.
    fn try_move(&mut self, from: usize, to: usize, cap: usize) -> Result<(), usize> {
        self.cells.swap(from, to);
        let mut held = if to == 0 { Memory::default() } else { self.after[to - 1] };
        let mut recounted = Vec::with_capacity(from - to + 1);
        for (slot, &cell) in self.cells.iter().enumerate().skip(to) {
            held = held.then(cell, self.weights_fill);
            if held.activations > cap {
                self.cells.swap(from, to);
                return Err(slot);
            }
            if slot >= from && held == self.after[slot] {
                break;
            }
            recounted.push(held);
        }
        self.after[to..to + recounted.len()].copy_from_slice(&recounted);
        Ok(())
    }

    /// Moves a backward and the W right after it to the first two adjacent free slots from `earliest` on, and
    /// returns the backward's slot. The cap is not checked: an earlier backward frees memory earlier.
    fn move_pair_forward(&mut self, from: usize, earliest: usize) -> usize {
        let fits = |to: &usize| self.cells[*to].is_none() && self.cells[to + 1].is_none();
        let Some(to) = (earliest..from).find(fits) else { return from };
        self.cells.swap(from, to);
        self.cells.swap(from + 1, to + 1);
        let mut held = if to == 0 { Memory::default() } else { self.after[to - 1] };
        for slot in to..=from + 1 {
            held = held.then(self.cells[slot], self.weights_fill);
            self.after[slot] = held;
        }
        to
    }

    /// Moves the operation at slot `from` to the first slot from `earliest` on that keeps the cap; returns its
    /// slot.
    fn move_forward(&mut self, from: usize, earliest: usize, cap: usize) -> usize {
        let mut to = earliest;
        while to < from {
            if self.cells[to].is_none() {
                match self.try_move(from, to, cap) {
                    Ok(()) => return to,
                    // With W in fixed slots, an F that exceeds the cap at a slot does so from every earlier slot
                    // too, so the search continues after it.
                    Err(broken) if !self.weights_fill => to = broken,
                    Err(_) => {}
                }
            }
            to += 1;
        }
        from
    }
}

/// Moves every operation of any phase. A backward and the slot after it move together, into two free slots.
pub(super) fn whole_backwards(ranks: &mut [Slots]) {
    let mut timelines: Vec<Rank> = ranks.iter().map(|slots| Rank::new(slots, false)).collect();
    let cap = timelines.iter().map(Rank::peak).max().unwrap_or(0);
    for (slot, rank, pass, mb) in in_order(ranks) {
        let input = latest_input(ranks, rank, pass, mb);
        match pass {
            W => {}
            F0 | F1 => {
                let earliest = input.map_or(0, |input| input + 1);
                ranks[rank][pass][mb] = timelines[rank].move_forward(slot, earliest, cap);
            }
            // Its inputs are backwards, which take two slots; only B1 at the turn on rank 0 follows an F1 of one
            // slot.
            _ => {
                let earliest = input.map_or(0, |input| input + 1 + usize::from(pass == B0 || rank > 0));
                let moved = timelines[rank].move_pair_forward(slot, earliest);
                ranks[rank][pass][mb] = moved;
                replace_sorted(&mut ranks[rank][W], slot + 1, moved + 1);
            }
        }
    }
}

#[derive(PartialEq)]
enum Phase {
    WarmUp,
    Steady,
    CoolDown,
}

/// Moves the operations of warm-up and cool-down, with W in their own slots. With `weights_fill`, moves only those of
/// the cool-down, with W not placed: a free slot counts as a W if one is due.
pub(super) fn reorder(ranks: &mut [Slots], weights_fill: bool) {
    let mut timelines: Vec<Rank> = ranks.iter().map(|slots| Rank::new(slots, weights_fill)).collect();
    let mut backwards: Vec<Vec<usize>> = ranks.iter().map(sorted_backwards).collect();
    let cap = timelines.iter().map(Rank::peak).max().unwrap_or(0);
    let last = ranks.first().map_or(0, |slots| slots[F0].len().saturating_sub(1));
    let mut phase = Phase::WarmUp;
    for (slot, rank, pass, mb) in in_order(ranks) {
        if phase == Phase::WarmUp && pass == B0 && rank == 0 {
            phase = Phase::Steady;
        }
        if phase == Phase::Steady && pass == F0 && mb == last {
            phase = Phase::CoolDown;
            continue;
        }
        if phase == Phase::Steady || (phase == Phase::WarmUp && weights_fill) {
            continue;
        }
        let own_backward = (pass == W).then(|| backwards[rank][mb]);
        let earliest = latest_input(ranks, rank, pass, mb).max(own_backward).map_or(0, |input| input + 1);
        let moved = timelines[rank].move_forward(slot, earliest, cap);
        ranks[rank][pass][mb] = moved;
        if matches!(pass, B1 | B0) {
            replace_sorted(&mut backwards[rank], slot, moved);
        }
    }
}

/// The slots of both chunks' backwards, sorted: W become due in this order.
pub(super) fn sorted_backwards(slots: &Slots) -> Vec<usize> {
    let mut backwards: Vec<usize> = slots[B1].iter().chain(&slots[B0]).copied().collect();
    backwards.sort_unstable();
    backwards
}

/// Replaces a value of a sorted list with a smaller one.
fn replace_sorted(sorted: &mut [usize], old: usize, new: usize) {
    let (to, from) = (sorted.partition_point(|&s| s < new), sorted.partition_point(|&s| s < old));
    sorted[to..=from].rotate_right(1);
    sorted[to] = new;
}
