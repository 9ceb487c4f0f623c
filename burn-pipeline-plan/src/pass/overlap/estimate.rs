//! How much of a transfer or a collective its rank has to stand still for: an estimate along the row.
//!
//! Guarantees: linear in the row, for all of its starts (or all of its waits) at once.
//!
//! 1. What a rank computes between a start and its wait hides that much of it.
//! 2. Where another one is started *and* awaited in between, the rank stands for that one too, so only the computations
//!    before its wait count (seen from the start), or those before its start (seen from the wait). A transfer without a
//!    wait of its own is one that is started and awaited in its place; it hides nothing.
//! 3. What is left is exposed. It is an estimate: when the other rank is ready does not enter.
//!
//! Follows `coll_exposed_communication_time` and `wait_exposed_communication_time` of PyTorch's
//! `torch/_inductor/comms.py` as their comments describe them, by suffix minima and a stack instead of walks.

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

/// The estimates of one started transfer or collective.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StartEstimate {
    /// The rank.
    pub rank: usize,
    /// The start.
    pub start: Task,
    /// Seen from the start: computations up to the first wait for something started later.
    pub from_start: OverlapEstimate,
    /// Seen from its wait, where it has one: computations before the first start that is awaited in between.
    pub from_wait: Option<OverlapEstimate>,
}

/// Estimates how much of each transfer and collective is exposed, by rank and place. A receive and its send are two.
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

    /// Where a start is awaited: at its wait, or in its own place.
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

/// The estimates of all starts, by cell; the rest is zero.
pub(super) fn of_starts(cells: &[Cell], order: &[u32]) -> Vec<OverlapEstimate> {
    let timeline = Timeline::new(cells, order);
    let mut estimates = vec![OverlapEstimate::default(); cells.len()];
    // The first wait of anything that starts later.
    let mut first = usize::MAX;
    for start in timeline.starts().rev() {
        let end = timeline.end(start);
        estimates[start as usize] = timeline.between(start, end.min(first));
        first = first.min(end);
    }
    estimates
}

/// The estimates of all waits, by cell; the rest is zero.
pub(super) fn of_waits(cells: &[Cell], order: &[u32]) -> Vec<OverlapEstimate> {
    let timeline = Timeline::new(cells, order);
    let mut estimates = vec![OverlapEstimate::default(); cells.len()];
    // Later starts whose ends fall towards the top: the first that ends before this one is the next on the stack.
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
