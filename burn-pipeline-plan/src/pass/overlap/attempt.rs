//! Applies one pass to all rows, without judging the result, and reports how each start moved.
//!
//! 1. `PassInput` has the rows with their costs (seconds are 0 without estimates) and, for greedy passes, the pairs of
//!    cells that must keep their order.
//! 2. An attempt reorders each row, by the greedy scheduler or swap by swap.
//! 3. The report compares the estimates of each start in the old and the new order.

use super::cell::{self, Cell, Role};
use super::graph::{self, Graph, Uses};
use super::iterative::{self, Outcome};
use super::judge::Judge;
use super::options::OverlapPass;
use super::order;
use super::report::{Movement, StartReport};
use super::{estimate, greedy};
use crate::pass::error::PassError;
use crate::plan::Action;
use crate::plan::edges::Edges;
use std::collections::HashMap;

/// The rows that a pass produces.
#[derive(Default)]
pub(super) struct Attempt {
    pub(super) rows: Vec<Vec<Action>>,
    pub(super) table: Vec<StartReport>,
    /// The number of cells, edges and neighbours visited: a machine-independent measure of time.
    pub(super) work: usize,
}

/// The data that all attempts of a pass on one plan share.
pub(super) struct PassInput {
    rows: Vec<Vec<Cell>>,
    /// Pairs of cells of each row that must keep their order. Empty for the iterative passes, which use `rules`
    /// instead.
    needs: Vec<Vec<(u32, u32)>>,
}

impl PassInput {
    pub(super) fn new(judge: &Judge<'_>, pass: OverlapPass) -> Result<Self, PassError> {
        let plan = &judge.plan;
        let mut rows = cell::rows(plan, &judge.profile.costs(plan.placement())?);
        if !judge.options.estimates {
            rows.iter_mut().flatten().for_each(|cell| (cell.seconds, cell.comm) = (0.0, 0.0));
        }
        let edges = Edges::new(plan);
        let mut uses = Uses::new(plan, &edges);
        let places = match pass {
            OverlapPass::OrderCommunication if !order::is_common(plan) => Some(order::by_time(plan, &judge.step)),
            _ => None,
        };
        let needs = |cells: &Vec<Cell>| match (pass, &places) {
            (OverlapPass::OrderCommunication, Some(places)) => {
                [uses.of(cells), order::chain(plan, cells, places)].concat()
            }
            _ if pass.is_greedy() => [uses.of(cells), graph::starts(cells)].concat(),
            _ => Vec::new(),
        };
        let needs = rows.iter().map(needs).collect();
        Ok(Self { rows, needs })
    }

    /// Applies the pass, rank by rank; greedy passes within `reach`.
    pub(super) fn attempt(&self, judge: &Judge<'_>, pass: OverlapPass, reach: usize) -> Attempt {
        let mut attempt = Attempt::default();
        for (rank, (cells, needs)) in self.rows.iter().zip(&self.needs).enumerate() {
            let Outcome { order, moved, work } = match pass {
                OverlapPass::OrderCommunication => placed(cells, needs, greedy::Aim::default()),
                OverlapPass::SinkWaitsIteratively => iterative::sink_waits(cells, judge.most[rank], &judge.options),
                OverlapPass::ReorderCommunication => iterative::raise_starts(cells, judge.most[rank], &judge.options),
                _ => placed(cells, &[needs.as_slice(), &graph::reach(cells, reach)].concat(), aim(pass)),
            };
            attempt.work += work;
            attempt.table.extend(table(rank, cells, &order, moved));
            attempt.rows.push(order.iter().map(|&cell| cells[cell as usize].action).collect());
        }
        attempt
    }
}

/// What the greedy scheduler does for a pass.
fn aim(pass: OverlapPass) -> greedy::Aim {
    let both = pass == OverlapPass::ReorderCompute;
    greedy::Aim {
        raise: both || pass == OverlapPass::RaiseCommunication,
        sink: both || pass == OverlapPass::SinkWaits,
        overlap: both,
    }
}

/// Places all cells of a row at once.
fn placed(cells: &[Cell], needs: &[(u32, u32)], aim: greedy::Aim) -> Outcome {
    let order = greedy::schedule(cells, &Graph::new(cells.len(), needs), aim);
    Outcome { order, moved: None, work: cells.len() + needs.len() }
}

/// One report for each start that has its own wait.
fn table(rank: usize, cells: &[Cell], order: &[u32], moved: Option<HashMap<u32, Movement>>) -> Vec<StartReport> {
    let place: Vec<u32> = (0..cells.len() as u32).collect();
    let (before, after) = (estimate::of_starts(cells, &place), estimate::of_starts(cells, order));
    let mut hiding = estimate::hiding(cells, order, StartReport::NAMED);
    let mut position = vec![0; cells.len()];
    order.iter().enumerate().for_each(|(at, &cell)| position[cell as usize] = at);
    let displaced = |cell: u32| position.get(cell as usize).map_or(0, |at| at.abs_diff(cell as usize));
    let row = |(cell, content): (usize, &Cell)| {
        let start = content.task().filter(|_| content.role == Role::Start)?;
        let placed = || Movement { moves: displaced(cell as u32) + displaced(content.partner), ..Movement::default() };
        let Movement { moves, along, limit } =
            moved.as_ref().map_or_else(placed, |moved| moved.get(&(cell as u32)).cloned().unwrap_or_default());
        Some(StartReport {
            rank,
            start,
            communication: content.comm,
            hidden: after[cell].hidden(),
            hidden_by: std::mem::take(&mut hiding[cell]),
            exposed_before: before[cell].exposed(),
            exposed_after: after[cell].exposed(),
            moves,
            along,
            limit,
        })
    };
    cells.iter().enumerate().filter_map(row).collect()
}
