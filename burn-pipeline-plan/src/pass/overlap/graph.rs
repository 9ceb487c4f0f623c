//! The order that a row must keep, as a graph with a number of edges linear in the row.
//!
//! Guarantees: every order that follows the edges can be reached by the swaps of [`rules`](super::rules), so it is
//! legal if the row was. Only the nearest edges are kept: a use of parameters depends on the last gathering, a
//! release on the uses since then, a reduction on its stage's weight gradients.

use super::cell::{Cell, NONE, Role};
use crate::plan::edges::{Edges, Side};
use crate::plan::{Op, Plan, Task};

/// Edges from earlier cells to later ones.
#[derive(Debug, Default)]
pub(super) struct Graph {
    /// Targets of edges, grouped by the cell that they leave.
    targets: Vec<u32>,
    begins: Vec<usize>,
    /// The number of edges that enter each cell.
    pub(super) entering: Vec<u32>,
}

impl Graph {
    pub(super) fn new(cells: usize, edges: &[(u32, u32)]) -> Self {
        let mut begins = vec![0; cells + 1];
        let mut entering = vec![0; cells];
        for &(from, to) in edges {
            begins[from as usize + 1] += 1;
            entering[to as usize] += 1;
        }
        for cell in 0..cells {
            begins[cell + 1] += begins[cell];
        }
        let mut next = begins.clone();
        let mut targets = vec![0; edges.len()];
        for &(from, to) in edges {
            targets[next[from as usize]] = to;
            next[from as usize] += 1;
        }
        Self { targets, begins, entering }
    }

    /// The cells that depend on this one.
    pub(super) fn after(&self, cell: u32) -> &[u32] {
        &self.targets[self.begins[cell as usize]..self.begins[cell as usize + 1]]
    }
}

/// The edges that keep the starts in their order, and waits after the starts that precede them.
pub(super) fn starts(cells: &[Cell]) -> Vec<(u32, u32)> {
    let mut last = None;
    let mut found = Vec::new();
    for (cell, Cell { role, .. }) in cells.iter().enumerate() {
        if role.starts() || role.waits() {
            found.extend(last.map(|last| (last, cell as u32)));
        }
        if role.starts() {
            last = Some(cell as u32);
        }
    }
    found
}

/// The edges that keep each computation, and each start that allocates memory, from moving before more than `reach`
/// computations.
pub(super) fn reach(cells: &[Cell], reach: usize) -> Vec<(u32, u32)> {
    let mut computed: Vec<u32> = Vec::new();
    let mut found = Vec::new();
    for (cell, Cell { role, alloc, .. }) in cells.iter().enumerate() {
        let computes = *role == Role::Compute;
        if computes || (role.starts() && *alloc > 0) {
            let bound = computed.len().checked_sub(reach.saturating_add(1)).map(|bound| computed[bound]);
            found.extend(bound.map(|bound| (bound, cell as u32)));
        }
        if computes {
            computed.push(cell as u32);
        }
    }
    found
}

/// The chains of a pair: the forward, the backward for the input, and the four transfers.
const KINDS: usize = 6;
const FORWARD: usize = 0;
const BACKWARD: usize = 1;

fn crossing(start: Op) -> Option<usize> {
    start.transfer_kind().map(|kind| 2 + kind)
}

/// Finds the edges that data and parameters require, row by row. One table serves all rows, since each pair is on
/// one rank.
pub(super) struct Uses<'a> {
    plan: &'a Plan,
    edges: &'a Edges,
    /// The last cell of each chain of each pair.
    made: Vec<u32>,
    /// The last cell that gathered, awaited or released a stage's parameters, and the computations since.
    parameters: Vec<u32>,
    users: Vec<Vec<u32>>,
    weights: Vec<Vec<u32>>,
    reductions: Vec<u32>,
    found: Vec<(u32, u32)>,
}

impl<'a> Uses<'a> {
    pub(super) fn new(plan: &'a Plan, edges: &'a Edges) -> Self {
        let slots = edges.slots().len();
        Self {
            plan,
            edges,
            made: vec![NONE; edges.pairs() * KINDS],
            parameters: vec![NONE; slots],
            users: vec![Vec::new(); slots],
            weights: vec![Vec::new(); slots],
            reductions: vec![NONE; slots],
            found: Vec::new(),
        }
    }

    /// The edges of one rank's row. Must be called once per rank.
    pub(super) fn of(&mut self, cells: &[Cell]) -> Vec<(u32, u32)> {
        for (cell, Cell { action, .. }) in cells.iter().enumerate() {
            for task in action.tasks() {
                self.task(cell as u32, task);
            }
        }
        std::mem::take(&mut self.found)
    }

    fn task(&mut self, cell: u32, task: Task) {
        let Some(slot) = self.edges.find(task.stage()) else { return };
        let at = self.edges.slots()[slot];
        let Some(pair) = task.microbatch().map(|m| at.base + m) else { return self.whole_stage(cell, slot, task) };
        match task.op() {
            Op::Forward => {
                self.follow(cell, pair, 3);
                if at.before == Side::SameRank {
                    self.follow(cell, pair - at.microbatches, FORWARD);
                }
                self.made[pair * KINDS + FORWARD] = cell;
            }
            _ if self.plan.begins_backward(task) => {
                self.follow(cell, pair, FORWARD);
                self.follow(cell, pair, 5);
                if at.after == Side::SameRank {
                    self.follow(cell, pair + at.microbatches, BACKWARD);
                }
                self.made[pair * KINDS + BACKWARD] = cell;
            }
            Op::BackwardWeight => self.follow(cell, pair, BACKWARD),
            op => {
                let Some(chain) = crossing(op.awaits().unwrap_or(op)) else { return };
                let made = if op.is_wait() { None } else { Some(op) };
                match made {
                    Some(Op::SendForward) => self.follow(cell, pair, FORWARD),
                    Some(Op::SendBackward) => self.follow(cell, pair, BACKWARD),
                    _ => {}
                }
                self.follow(cell, pair, chain);
                self.made[pair * KINDS + chain] = cell;
            }
        }
        if task.op().is_compute() {
            self.edge(self.parameters[slot], cell);
            self.users[slot].push(cell);
        }
        if task.op().gives_weight_gradient() {
            self.weights[slot].push(cell);
        }
    }

    fn whole_stage(&mut self, cell: u32, slot: usize, task: Task) {
        match task.op() {
            Op::ReduceGrad => {
                self.found.extend(self.weights[slot].drain(..).map(|weight| (weight, cell)));
                self.reductions[slot] = cell;
            }
            Op::WaitReduceGrad => self.edge(self.reductions[slot], cell),
            _ => {
                self.edge(self.parameters[slot], cell);
                self.found.extend(self.users[slot].drain(..).map(|user| (user, cell)));
                self.parameters[slot] = cell;
            }
        }
    }

    fn follow(&mut self, cell: u32, pair: usize, chain: usize) {
        self.edge(self.made[pair * KINDS + chain], cell);
    }

    fn edge(&mut self, from: u32, to: u32) {
        if from != NONE {
            self.found.push((from, to));
        }
    }
}
