//! A greedy list scheduler with three scores: it moves waits later, communication earlier, and computations between
//! them.
//!
//! Guarantees: rows follow the edges of [`graph`](super::graph), so plans stay legal; `O(n log n)` in the row.
//! Without a bound on the reach it is idempotent.
//!
//! 1. Each cell has three scores; lower ones run sooner: the number of the first start that depends on it (if
//!    communication moves earlier; cells without such a start come last), whether it is a wait (if waits move
//!    later), and its place in the row.
//! 2. Of all cells whose predecessors have run, the one with the lowest scores runs next.
//! 3. To reorder for overlap, a start is followed by ready computations, lowest scores first, until they cover its
//!    seconds; then comes the next start.
//!
//! Follows `_schedule_for_comm` of PyTorch's `torch/_inductor/comms.py`.

use super::cell::{Cell, NONE, Role};
use super::graph::Graph;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The goals of the scheduler.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Aim {
    pub(super) raise: bool,
    pub(super) sink: bool,
    pub(super) overlap: bool,
}

/// The scores and the cell, lowest first.
type Entry = Reverse<(u32, bool, u32)>;

/// Returns a new order of a row's cells.
pub(super) fn schedule(cells: &[Cell], graph: &Graph, aim: Aim) -> Vec<u32> {
    let leads = if aim.raise { leads_to(cells, graph) } else { vec![NONE; cells.len()] };
    let score = |cell: u32| Reverse((leads[cell as usize], aim.sink && cells[cell as usize].role == Role::Wait, cell));
    let mut run = Run {
        cells,
        graph,
        entering: graph.entering.clone(),
        computations: BinaryHeap::new(),
        others: BinaryHeap::new(),
        order: Vec::with_capacity(cells.len()),
        score: &score,
    };
    for cell in 0..cells.len() as u32 {
        if run.entering[cell as usize] == 0 {
            run.ready(cell);
        }
    }
    while let Some(cell) = run.take_lowest() {
        run.run(cell);
        if aim.overlap && cells[cell as usize].role == Role::Start {
            let mut left = cells[cell as usize].comm;
            while left > 0.0 {
                let Some(Reverse((_, _, computation))) = run.computations.pop() else { break };
                run.run(computation);
                left -= cells[computation as usize].seconds;
            }
        }
    }
    run.order
}

/// The number of the first start that depends on each cell, or [`NONE`].
fn leads_to(cells: &[Cell], graph: &Graph) -> Vec<u32> {
    let mut leads = vec![NONE; cells.len()];
    let mut number = cells.iter().filter(|cell| cell.role.starts()).count() as u32;
    for cell in (0..cells.len()).rev() {
        let after = graph.after(cell as u32).iter().map(|&next| leads[next as usize]).min().unwrap_or(NONE);
        if cells[cell].role.starts() {
            number -= 1;
        }
        leads[cell] = if cells[cell].role.starts() { number.min(after) } else { after };
    }
    leads
}

struct Run<'a, S: Fn(u32) -> Entry> {
    cells: &'a [Cell],
    graph: &'a Graph,
    entering: Vec<u32>,
    computations: BinaryHeap<Entry>,
    others: BinaryHeap<Entry>,
    order: Vec<u32>,
    score: &'a S,
}

impl<S: Fn(u32) -> Entry> Run<'_, S> {
    fn ready(&mut self, cell: u32) {
        let computes = matches!(self.cells[cell as usize].role, Role::Compute | Role::Release);
        let heap = if computes { &mut self.computations } else { &mut self.others };
        heap.push((self.score)(cell));
    }

    fn take_lowest(&mut self) -> Option<u32> {
        // The heap pops the greatest entry, and scores are stored reversed: the greater entry is the lower score.
        let other_first = self.others.peek() > self.computations.peek();
        let heap = if other_first { &mut self.others } else { &mut self.computations };
        heap.pop().map(|Reverse((_, _, cell))| cell)
    }

    fn run(&mut self, cell: u32) {
        self.order.push(cell);
        for &next in self.graph.after(cell) {
            self.entering[next as usize] -= 1;
            if self.entering[next as usize] == 0 {
                self.ready(next);
            }
        }
    }
}
