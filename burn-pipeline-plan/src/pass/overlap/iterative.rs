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
use super::memory::Order;
use super::options::OverlapOptions;
use super::report::{Limit, Movement};
use super::rules::{are_tied, may_swap};
use crate::pass::error::PassError;

/// The number of swaps allowed per computation that may be passed, to allow for its sends, receives and waits.
const SWAPS: usize = 8;

/// A row's new order, and how each start (or wait) moved.
pub(super) struct Outcome {
    pub(super) order: Vec<u32>,
    pub(super) moved: Vec<(u32, Movement)>,
    pub(super) recounts: usize,
    /// The number of comparisons of a neighbour with a cell of a group.
    pub(super) looked: usize,
}

/// Raises every start of a row. `most` is the memory that the row may hold.
pub(super) fn raise_starts(
    rank: usize,
    cells: &[Cell],
    most: i64,
    options: &OverlapOptions,
) -> Result<Outcome, PassError> {
    let order: Vec<u32> = (0..cells.len() as u32).collect();
    let mut mover = Mover::new(rank, cells, most, options, of_starts(cells, &order));
    for &start in order.iter().filter(|&&cell| cells[cell as usize].role == Role::Start) {
        let moved = mover.raise(start)?;
        mover.moved.push((start, moved));
    }
    Ok(mover.finish())
}

/// Sinks every wait of a row. `most` is the memory that the row may hold.
pub(super) fn sink_waits(
    rank: usize,
    cells: &[Cell],
    most: i64,
    options: &OverlapOptions,
) -> Result<Outcome, PassError> {
    let order: Vec<u32> = (0..cells.len() as u32).collect();
    // Estimates are stored with the start, whichever end moves.
    let mut estimates = of_starts(cells, &order);
    for (wait, estimate) in of_waits(cells, &order).into_iter().enumerate() {
        let start = cells[wait].partner;
        if cells[wait].role == Role::Wait && start != NONE {
            estimates[start as usize] = estimate;
        }
    }
    let mut mover = Mover::new(rank, cells, most, options, estimates);
    for &wait in order.iter().rev().filter(|&&cell| cells[cell as usize].role == Role::Wait) {
        let moved = mover.sink(wait)?;
        mover.moved.push((cells[wait as usize].partner, moved));
    }
    Ok(mover.finish())
}

struct Mover<'a> {
    rank: usize,
    options: &'a OverlapOptions,
    order: Order<'a>,
    /// The most memory that the row may hold.
    most: i64,
    estimates: Vec<OverlapEstimate>,
    group: Vec<u32>,
    moved: Vec<(u32, Movement)>,
    recounts: usize,
    looked: usize,
}

impl<'a> Mover<'a> {
    fn new(
        rank: usize,
        cells: &'a [Cell],
        most: i64,
        options: &'a OverlapOptions,
        estimates: Vec<OverlapEstimate>,
    ) -> Self {
        Self {
            rank,
            options,
            order: Order::new(cells),
            most,
            estimates,
            group: Vec::new(),
            moved: Vec::new(),
            recounts: 0,
            looked: 0,
        }
    }

    fn finish(self) -> Outcome {
        let order = self.order.iter().collect();
        Outcome { order, moved: self.moved, recounts: self.recounts, looked: self.looked }
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
    fn joins(&self, cell: &Cell) -> bool {
        self.group.len() <= self.options.group && (self.options.estimates || cell.role != Role::Compute)
    }

    /// The most swaps of one start or wait. Also bounds moves past cells without computation, which the reach
    /// ignores.
    fn most_moves(&self) -> usize {
        self.options.reach.saturating_add(1).saturating_mul(SWAPS)
    }

    fn raise(&mut self, start: u32) -> Result<Movement, PassError> {
        let mut moved = Movement::default();
        let mut passed = 0;
        self.group = vec![start];
        moved.limit = loop {
            let candidate = self.order.previous[self.group[0] as usize];
            if candidate == NONE {
                break Limit::End;
            }
            if self.is_hidden(start) {
                break Limit::Hidden;
            }
            let cell = self.cell(candidate);
            self.looked += self.group.len();
            if cell.role.starts() {
                break Limit::Order(cell.action);
            }
            if self.group.iter().any(|&member| are_tied(cell, self.cell(member))) {
                if !self.joins(cell) {
                    break Limit::Data(cell.action);
                }
                self.group.insert(0, candidate);
                moved.along.push(cell.action);
                continue;
            }
            if moved.moves >= self.most_moves() {
                break Limit::Reach;
            }
            if let Some(limit) = self.refuse_raise(start, candidate, passed) {
                break limit;
            }
            self.order.raise(candidate, &self.group);
            self.recount(candidate)?;
            passed += usize::from(cell.role == Role::Compute);
            moved.moves += 1;
        };
        Ok(moved)
    }

    /// Returns the reason why the group may not move before the candidate. If it may, updates the estimates for the
    /// move.
    fn refuse_raise(&mut self, start: u32, candidate: u32, passed: usize) -> Option<Limit> {
        let cell = self.cell(candidate);
        if passed >= self.options.reach && cell.role == Role::Compute {
            return Some(Limit::Reach);
        }
        if !self.group.iter().all(|&member| may_swap(cell, self.cell(member))) {
            return Some(Limit::Order(cell.action));
        }
        let peak = self.order.peak_if_raised(candidate, &self.group);
        if peak > self.most {
            return Some(Limit::Memory { bytes: bytes(peak) });
        }
        // A wait in the group moves before the candidate, whose computation then no longer hides its start; the
        // raised start gains that computation. If the candidate is a wait, its start gains the group's
        // computations.
        let (group_seconds, later) = (self.group_seconds(), self.awaited_by(candidate));
        let sooner = self.group.iter().filter_map(|&member| self.awaited_by(member));
        let loss = sooner.map(|start| self.loss(start, cell.seconds)).sum::<f64>();
        let gain = self.gain(start, cell.seconds) + later.map_or(0.0, |s| self.gain(s, group_seconds));
        if loss > gain {
            return Some(Limit::Exposes { seconds: loss - gain });
        }
        for member in 0..self.group.len() {
            let sooner = self.awaited_by(self.group[member]);
            self.hide(sooner, -cell.seconds);
        }
        self.hide(Some(start), cell.seconds);
        self.hide(later, group_seconds);
        None
    }

    fn sink(&mut self, wait: u32) -> Result<Movement, PassError> {
        let mut moved = Movement::default();
        let start = self.cell(wait).partner;
        let mut passed = 0;
        self.group = vec![wait];
        moved.limit = loop {
            let candidate = self.group.last().map_or(NONE, |&last| self.order.next[last as usize]);
            if candidate == NONE {
                break Limit::End;
            }
            if start == NONE || self.is_hidden(start) {
                break Limit::Hidden;
            }
            let cell = self.cell(candidate);
            self.looked += self.group.len();
            if self.group.iter().any(|&member| are_tied(self.cell(member), cell)) {
                if !matches!(cell.role, Role::Compute | Role::Release) || !self.joins(cell) {
                    break Limit::Data(cell.action);
                }
                self.group.push(candidate);
                moved.along.push(cell.action);
                continue;
            }
            if moved.moves >= self.most_moves() {
                break Limit::Reach;
            }
            if let Some(limit) = self.refuse_sink(start, candidate, passed) {
                break limit;
            }
            self.order.sink(&self.group, candidate);
            self.recount(candidate)?;
            passed += usize::from(cell.role == Role::Compute);
            moved.moves += 1;
        };
        Ok(moved)
    }

    /// Returns the reason why the group may not move after the candidate. If it may, updates the estimates for the
    /// move.
    fn refuse_sink(&mut self, start: u32, candidate: u32, passed: usize) -> Option<Limit> {
        let cell = self.cell(candidate);
        if passed >= self.options.reach && cell.role == Role::Compute {
            return Some(Limit::Reach);
        }
        if !self.group.iter().all(|&member| may_swap(self.cell(member), cell)) {
            return Some(Limit::Order(cell.action));
        }
        let peak = self.order.peak_if_sunk(&self.group, candidate);
        if peak > self.most {
            return Some(Limit::Memory { bytes: bytes(peak) });
        }
        let group_seconds = self.group_seconds();
        // If the candidate is a wait, it moves before the group's computations, which then no longer hide its
        // start.
        let sooner = self.awaited_by(candidate);
        let loss = sooner.map_or(0.0, |start| self.loss(start, group_seconds));
        let gain = self.gain(start, cell.seconds);
        if loss > gain {
            return Some(Limit::Exposes { seconds: loss - gain });
        }
        self.hide(sooner, -group_seconds);
        self.hide(Some(start), cell.seconds);
        if cell.role == Role::Start {
            self.hide(Some(candidate), group_seconds);
        }
        None
    }

    /// The start of a wait.
    fn awaited_by(&self, wait: u32) -> Option<u32> {
        let cell = self.cell(wait);
        (cell.role == Role::Wait && cell.partner != NONE).then_some(cell.partner)
    }

    /// The seconds that the group computes.
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

    fn hide(&mut self, start: Option<u32>, seconds: f64) {
        if let Some(start) = start {
            self.estimates[start as usize].computation += seconds;
        }
    }

    /// Compares the levels with a recount, if the options request it.
    fn recount(&mut self, cell: u32) -> Result<(), PassError> {
        if !self.options.recount {
            return Ok(());
        }
        self.recounts += 1;
        if self.order.recounts() {
            return Ok(());
        }
        Err(PassError::Recount { rank: self.rank, action: self.cell(cell).action })
    }
}
