//! Estimates, from a row alone, how much of a transfer or collective computation hides and how much is exposed.
//!
//! Guarantees: linear in the row, for all its starts (or all its waits) at once.
//!
//! 1. Computations between a start and its wait hide that much of it.
//! 2. If another operation is both started and awaited in between, the rank also stops for that one. Then only the
//!    computations before the other's wait count (seen from the start), or those before the other's start (seen from the
//!    wait). A transfer without a wait starts and is awaited in one place, so nothing hides it.
//! 3. The rest is exposed. It is an estimate, since it does not know when the other rank is ready; what was really
//!    exposed in a simulated or measured step says [`exposed_times`](crate::trace::exposed_times).
//!
//! Follows `coll_exposed_communication_time` and `wait_exposed_communication_time` of PyTorch's
//! `torch/_inductor/comms.py` as their comments describe them, with suffix minima and a stack instead of a walk for each.

use super::cell::{self, Cell, NONE, Role};
use crate::cost::{Profile, ProfileError};
use crate::plan::{Plan, Task};

/// The estimate for one start or wait.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct OverlapEstimate {
    /// Seconds of the transfer or collective.
    pub communication: f64,
    /// Seconds of computation that run beside it.
    pub computation: f64,
}

impl OverlapEstimate {
    /// Seconds that no computation hides.
    pub fn exposed(&self) -> f64 {
        (self.communication - self.computation).max(0.0)
    }

    /// Seconds that computation hides.
    pub fn hidden(&self) -> f64 {
        self.communication.min(self.computation)
    }
}

/// The estimates for one started transfer or collective.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StartEstimate {
    /// The rank.
    pub rank: usize,
    /// The start.
    pub start: Task,
    /// Seen from the start: computations count up to the first wait for an operation that is started later.
    pub from_start: OverlapEstimate,
    /// Seen from its wait, if it has one: computations count up to the first start of an operation that is awaited
    /// before.
    pub from_wait: Option<OverlapEstimate>,
}

/// Estimates how much of each transfer and collective is exposed, by rank and place. A send and its receive are two
/// entries.
///
/// # Errors
/// If the profile does not fit the plan's placement.
pub fn estimate_overlap(plan: &Plan, profile: &Profile) -> Result<Vec<StartEstimate>, ProfileError> {
    let costs = profile.costs(plan.placement())?;
    let row = |(rank, cells): (usize, Vec<Cell>)| {
        let order: Vec<u32> = (0..cells.len() as u32).collect();
        let (starts, waits) = (of_starts(&cells, &order), of_waits(&cells, &order));
        let one = |(cell, content): (usize, &Cell)| {
            let start = content.task().filter(|_| content.role.starts())?;
            let from_wait = waits.get(content.partner as usize).copied();
            Some(StartEstimate { rank, start, from_start: starts[cell], from_wait })
        };
        cells.iter().enumerate().filter_map(one).collect::<Vec<_>>()
    };
    Ok(cell::rows(plan, &costs).into_iter().enumerate().flat_map(row).collect())
}

/// Positions of a row's cells in an order, and the seconds computed before each position.
struct Timeline<'a> {
    cells: &'a [Cell],
    order: &'a [u32],
    position: Vec<usize>,
    before: Vec<f64>,
}

impl<'a> Timeline<'a> {
    fn new(cells: &'a [Cell], order: &'a [u32]) -> Self {
        let mut position = vec![0; cells.len()];
        let mut before = Vec::with_capacity(order.len() + 1);
        before.push(0.0);
        for (place, &cell) in order.iter().enumerate() {
            position[cell as usize] = place;
            before.push(before[place] + cells[cell as usize].seconds);
        }
        Self { cells, order, position, before }
    }

    /// The position at which a start is awaited: that of its wait, or its own.
    fn end(&self, start: u32) -> usize {
        match self.cells[start as usize].partner {
            NONE => self.position[start as usize],
            wait => self.position[wait as usize],
        }
    }

    fn between(&self, start: u32, end: usize) -> OverlapEstimate {
        let place = self.position[start as usize];
        let computation = if end > place { self.before[end] - self.before[place + 1] } else { 0.0 };
        OverlapEstimate { communication: self.cells[start as usize].comm, computation }
    }

    fn starts(&self) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.order.iter().copied().filter(|&cell| self.cells[cell as usize].role.starts())
    }
}

/// The estimates of all starts, by cell; zero for other cells.
pub(super) fn of_starts(cells: &[Cell], order: &[u32]) -> Vec<OverlapEstimate> {
    let timeline = Timeline::new(cells, order);
    let mut estimates = vec![OverlapEstimate::default(); cells.len()];
    // The earliest end among the starts visited so far, which all come later in the row.
    let mut first = usize::MAX;
    for start in timeline.starts().rev() {
        let end = timeline.end(start);
        estimates[start as usize] = timeline.between(start, end.min(first));
        first = first.min(end);
    }
    estimates
}

/// The estimates of all waits, by cell; zero for other cells.
pub(super) fn of_waits(cells: &[Cell], order: &[u32]) -> Vec<OverlapEstimate> {
    let timeline = Timeline::new(cells, order);
    let mut estimates = vec![OverlapEstimate::default(); cells.len()];
    // A stack of later starts. An entry that ends after its successor can never be the first to end, so it is removed;
    // the ends then fall towards the top, and the nearest start that ends before this one is on top.
    let mut later: Vec<u32> = Vec::new();
    for start in timeline.starts().rev() {
        let end = timeline.end(start);
        while later.last().is_some_and(|&other| timeline.end(other) >= end) {
            later.pop();
        }
        let inner = later.last().map_or(end, |&other| timeline.position[other as usize].min(end));
        let cell = &cells[start as usize];
        if cell.role == Role::Start && cell.partner != NONE {
            estimates[cell.partner as usize] = timeline.between(start, inner);
        }
        later.push(start);
    }
    estimates
}
