//! Moves starts earlier (raises them) and waits later (sinks them), swap by swap, while that hides something and
//! memory allows it.
//!
//! Guarantees: only swaps that [`rules`](super::rules) allow. No swap raises the row's memory above its former peak
//! plus the allowed extra. The limit of each move is reported. Time is linear in the row for a given reach and
//! group.
//!
//! 1. Starts are taken from the first to the last, waits from the last to the first. Each is swapped with its
//!    neighbour as long as it is exposed.
//! 2. A neighbour that must keep its order with it joins it, up to a number of cells, and the group moves on
//!    together. Computations and releases may join, waits only when a start rises, another start never.
//! 3. If waits move earlier with a group, the neighbour's computation no longer hides their operations. The group moves
//!    only if the start gains more than these lose.
//! 4. Without estimates nothing counts as hidden or lost, and computations do not join.
//!
//! Follows `_reorder_communication_preserving_peak_memory_internal` and `sink_waits_iterative` of PyTorch's
//! `torch/_inductor/comms.py`, which recompute the estimates; here each swap updates them.

use super::cell::{Cell, NONE, Role, bytes};
use super::estimate::{OverlapEstimate, of_starts, of_waits};
use super::memory::{Order, recount};
use super::options::OverlapOptions;
use super::report::{Limit, Movement};
use super::rules::{are_tied, may_swap};
use std::collections::HashMap;

/// The number of swaps allowed per computation that may be passed, to allow for its sends, receives and waits.
const SWAPS: usize = 8;

/// A row's new order.
pub(super) struct Outcome {
    pub(super) order: Vec<u32>,
    /// How each start, or its wait, moved; `None` if all cells were placed at once.
    pub(super) moved: Option<HashMap<u32, Movement>>,
    /// The number of cells, and of edges or comparisons of a neighbour with a cell of a group.
    pub(super) work: usize,
}

/// Raises every start of a row. `most` is the memory that the row may hold.
pub(super) fn raise_starts(cells: &[Cell], most: i64, options: &OverlapOptions) -> Outcome {
    let order: Vec<u32> = (0..cells.len() as u32).collect();
    let mut mover = Mover::new(cells, most, options, of_starts(cells, &order));
    for &start in order.iter().filter(|&&cell| cells[cell as usize].role == Role::Start) {
        mover.shift(start, start, Way::Up);
    }
    mover.finish()
}

/// Sinks every wait of a row. `most` is the memory that the row may hold.
pub(super) fn sink_waits(cells: &[Cell], most: i64, options: &OverlapOptions) -> Outcome {
    let order: Vec<u32> = (0..cells.len() as u32).collect();
    // Estimates are stored with the start, whichever end moves.
    let mut estimates = of_starts(cells, &order);
    for (wait, estimate) in of_waits(cells, &order).into_iter().enumerate() {
        let start = cells[wait].partner;
        if cells[wait].role == Role::Wait && start != NONE {
            estimates[start as usize] = estimate;
        }
    }
    let mut mover = Mover::new(cells, most, options, estimates);
    for &wait in order.iter().rev().filter(|&&cell| cells[cell as usize].role == Role::Wait) {
        mover.shift(wait, cells[wait as usize].partner, Way::Down);
    }
    mover.finish()
}

/// Where a group of cells moves: before its neighbour, or after it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

struct Mover<'a> {
    options: &'a OverlapOptions,
    order: Order<'a>,
    /// The most memory that the row may hold.
    most: i64,
    estimates: Vec<OverlapEstimate>,
    /// The cells that move together, in order.
    group: Vec<u32>,
    moved: HashMap<u32, Movement>,
    looked: usize,
}

impl<'a> Mover<'a> {
    fn new(cells: &'a [Cell], most: i64, options: &'a OverlapOptions, estimates: Vec<OverlapEstimate>) -> Self {
        let (order, group, moved) = (Order::new(cells), Vec::new(), HashMap::new());
        Self { options, order, most, estimates, group, moved, looked: 0 }
    }

    fn finish(self) -> Outcome {
        let order: Vec<u32> = self.order.iter().collect();
        debug_assert_eq!(self.order.levels, recount(self.order.cells, order.iter().copied()));
        Outcome { work: order.len() + self.looked, order, moved: Some(self.moved) }
    }

    fn cell(&self, cell: u32) -> &'a Cell {
        &self.order.cells[cell as usize]
    }

    /// Returns true if computation covers the seconds of a start and the margin. Always false without estimates.
    fn is_hidden(&self, start: u32) -> bool {
        let OverlapEstimate { communication, computation } = self.estimates[start as usize];
        self.options.estimates && computation >= communication * (1.0 + self.options.margin)
    }

    /// Returns true if a cell may join the group. Without estimates, the cost of moving a computation is unknown.
    fn joins(&self, cell: &Cell, way: Way) -> bool {
        let movable = way == Way::Up || matches!(cell.role, Role::Compute | Role::Release);
        movable && self.group.len() <= self.options.group && (self.options.estimates || cell.role != Role::Compute)
    }

    /// The most swaps of one start or wait. Also bounds moves past cells without computation, which the reach
    /// ignores.
    fn most_moves(&self) -> usize {
        self.options.reach.saturating_add(1).saturating_mul(SWAPS)
    }

    /// The cell that the group would pass next; [`NONE`] at the end of the row.
    fn neighbour(&self, way: Way) -> u32 {
        match way {
            Way::Up => self.group.first().map_or(NONE, |&first| self.order.previous[first as usize]),
            Way::Down => self.group.last().map_or(NONE, |&last| self.order.next[last as usize]),
        }
    }

    /// Moves a start up, or its wait down, as far as possible. `start` is [`NONE`] for a wait without one.
    fn shift(&mut self, moving: u32, start: u32, way: Way) {
        let mut moved = Movement::default();
        let mut passed = 0;
        self.group = vec![moving];
        moved.limit = loop {
            let candidate = self.neighbour(way);
            if candidate == NONE {
                break Limit::End;
            }
            if start == NONE || self.is_hidden(start) {
                break Limit::Hidden;
            }
            let cell = self.cell(candidate);
            self.looked += self.group.len();
            if way == Way::Up && cell.role.starts() {
                break Limit::Order(cell.action);
            }
            if self.group.iter().any(|&member| are_tied(cell, self.cell(member))) {
                if !self.joins(cell, way) {
                    break Limit::Data(cell.action);
                }
                self.group.insert(if way == Way::Up { 0 } else { self.group.len() }, candidate);
                moved.along.push(cell.action);
                continue;
            }
            let far = passed >= self.options.reach && cell.role == Role::Compute;
            if far || moved.moves >= self.most_moves() {
                break Limit::Reach;
            }
            if let Some(limit) = self.pass(start, candidate, way) {
                break limit;
            }
            passed += usize::from(cell.role == Role::Compute);
            moved.moves += 1;
        };
        self.moved.insert(start, moved);
    }

    /// Swaps the group with its neighbour, or returns the reason why not.
    fn pass(&mut self, start: u32, candidate: u32, way: Way) -> Option<Limit> {
        let cell = self.cell(candidate);
        let alone = [candidate];
        let (first, second) =
            if way == Way::Up { (&alone[..], &self.group[..]) } else { (&self.group[..], &alone[..]) };
        if !first.iter().all(|&a| second.iter().all(|&b| may_swap(self.cell(a), self.cell(b)))) {
            return Some(Limit::Order(cell.action));
        }
        let peak = self.order.peak_if_swapped(first, second);
        if peak > self.most {
            return Some(Limit::Memory { bytes: bytes(peak) });
        }
        // Computations between a start and its wait hide it. So a wait that moves down past computations gains them for
        // its start, one that moves up loses them, and a start that moves up gains them.
        let (group_seconds, awaited) = (self.group_seconds(), self.awaited_by(candidate));
        let awaited = awaited.map(|start| (start, group_seconds));
        let mut gains = vec![(start, cell.seconds)];
        let mut losses: Vec<(u32, f64)> = Vec::new();
        match way {
            Way::Up => {
                losses.extend(self.group.iter().filter_map(|&member| Some((self.awaited_by(member)?, cell.seconds))));
                gains.extend(awaited);
            }
            Way::Down => losses.extend(awaited),
        }
        let loss: f64 = losses.iter().map(|&(start, seconds)| self.loss(start, seconds)).sum();
        let gain: f64 = gains.iter().map(|&(start, seconds)| self.gain(start, seconds)).sum();
        if loss > gain {
            return Some(Limit::Exposes { seconds: loss - gain });
        }
        self.order.swap(first, second);
        // The neighbour's gain is not what the move is for, so it does not outweigh a loss.
        if cell.role == Role::Start {
            gains.push((candidate, group_seconds));
        }
        losses.into_iter().for_each(|(start, seconds)| self.estimates[start as usize].computation -= seconds);
        gains.into_iter().for_each(|(start, seconds)| self.estimates[start as usize].computation += seconds);
        None
    }

    fn awaited_by(&self, wait: u32) -> Option<u32> {
        let cell = self.cell(wait);
        (cell.role == Role::Wait && cell.partner != NONE).then_some(cell.partner)
    }

    fn group_seconds(&self) -> f64 {
        self.group.iter().map(|&member| self.cell(member).seconds).sum()
    }

    /// The additional exposed seconds if `seconds` of computation no longer hide a start.
    fn loss(&self, start: u32, seconds: f64) -> f64 {
        let estimate = self.estimates[start as usize];
        let less = OverlapEstimate { computation: estimate.computation - seconds, ..estimate };
        less.exposed() - estimate.exposed()
    }

    /// The saved exposed seconds if another `seconds` of computation hide a start.
    fn gain(&self, start: u32, seconds: f64) -> f64 {
        let estimate = self.estimates[start as usize];
        let more = OverlapEstimate { computation: estimate.computation + seconds, ..estimate };
        estimate.exposed() - more.exposed()
    }
}
