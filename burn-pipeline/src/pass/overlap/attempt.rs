//! One pass over all rows: what it would make of them, and the table of what became of each start.

use super::cell::{self, Cell, Role};
use super::graph::{self, Graph, Uses};
use super::judge::Judge;
use super::order::{self, communication_order};
use super::report::{Moved, PassRow};
use super::{OverlapError, Pass, exposed, greedy, iterative};
use crate::plan::edges::Edges;
use crate::plan::{Action, Plan, Task};
use std::collections::HashMap;

/// What a pass would make of a plan.
#[derive(Default)]
pub(super) struct Attempt {
    pub(super) rows: Vec<Vec<Action>>,
    pub(super) table: Vec<PassRow>,
    pub(super) recounts: usize,
}

/// Attempts a pass, rank by rank; the greedy ones within `reach`.
pub(super) fn attempt(judge: &Judge<'_>, pass: Pass, reach: usize) -> Result<Attempt, OverlapError> {
    let plan = judge.plan();
    let costs = judge.profile().costs(plan.placement())?;
    let rows = cell::rows(plan, &costs);
    let places = match pass {
        Pass::OrderCommunication if communication_order(plan).is_none() => Some(order::by_time(plan, judge.step())),
        _ => None,
    };
    let mut attempt = Attempt::default();
    let edges = Edges::new(plan);
    let mut uses = Uses::new(&edges);
    for (rank, cells) in rows.iter().enumerate() {
        let (order, moved, recounts) = match pass {
            Pass::OrderCommunication => (ordered(plan, cells, &mut uses, places.as_ref()), None, 0),
            Pass::SinkWaitsIteratively => {
                iterated(iterative::sink_waits(rank, cells, judge.most(rank), judge.options())?)
            }
            Pass::ReorderCommunication => {
                iterated(iterative::raise_starts(rank, cells, judge.most(rank), judge.options())?)
            }
            _ => (scheduled(cells, &mut uses, pass, reach), None, 0),
        };
        attempt.recounts += recounts;
        attempt.table.extend(table(rank, cells, &order, moved));
        attempt.rows.push(order.iter().map(|&cell| cells[cell as usize].action).collect());
    }
    Ok(attempt)
}

type Row = (Vec<u32>, Option<HashMap<u32, Moved>>, usize);

fn iterated(outcome: iterative::Outcome) -> Row {
    (outcome.order, Some(outcome.moved.into_iter().collect()), outcome.recounts)
}

fn scheduled(cells: &[Cell], uses: &mut Uses<'_>, pass: Pass, reach: usize) -> Vec<u32> {
    let mut needs = uses.of(cells);
    needs.extend(graph::starts(cells));
    needs.extend(graph::reach(cells, reach));
    greedy::schedule(cells, &Graph::new(cells.len(), &needs), pass.aim())
}

fn ordered(plan: &Plan, cells: &[Cell], uses: &mut Uses<'_>, places: Option<&HashMap<Task, u32>>) -> Vec<u32> {
    let Some(places) = places else { return (0..cells.len() as u32).collect() };
    let mut needs = uses.of(cells);
    needs.extend(order::chain(plan, cells, places));
    greedy::schedule(cells, &Graph::new(cells.len(), &needs), greedy::Aim::default())
}

/// What became of each start of a row with a wait of its own.
fn table(rank: usize, cells: &[Cell], order: &[u32], moved: Option<HashMap<u32, Moved>>) -> Vec<PassRow> {
    let place: Vec<u32> = (0..cells.len() as u32).collect();
    let (before, after) = (exposed::of_starts(cells, &place), exposed::of_starts(cells, order));
    let mut position = vec![0; cells.len()];
    order.iter().enumerate().for_each(|(at, &cell)| position[cell as usize] = at);
    let displaced = |cell: u32| position.get(cell as usize).map_or(0, |at| at.abs_diff(cell as usize));
    let row = |(cell, content): (usize, &Cell)| {
        let start = content.task().filter(|_| content.role == Role::Start)?;
        let placed = || Moved { moves: displaced(cell as u32) + displaced(content.partner), ..Moved::default() };
        let Moved { moves, grouped, limit } =
            moved.as_ref().map_or_else(placed, |moved| moved.get(&(cell as u32)).copied().unwrap_or_default());
        Some(PassRow {
            rank,
            start,
            communication: content.comm,
            hidden: after[cell].hidden(),
            exposed_before: before[cell].exposed(),
            exposed_after: after[cell].exposed(),
            moves,
            grouped,
            limit,
        })
    };
    cells.iter().enumerate().filter_map(row).collect()
}
