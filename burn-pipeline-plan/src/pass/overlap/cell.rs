//! A row with costs: the seconds and bytes of each cell, and the wait of each start.
//!
//! Guarantees: linear in the row. Bytes are whole multiples of 1/1024 byte, so that a running count, changed by
//! adding and subtracting in any order, equals a recount exactly.
//!
//! Memory is counted along the row, not in time: a cell's allocation counts from before the cell, its release from
//! after it. `F` allocates the activation, `I`, `W` and `B` free their parts of it. A receive buffer counts from
//! the receive to the end of its use, a send buffer from the send to its wait (without a wait, not at all),
//! gathered parameters from `UNSHARD` to `RESHARD`.

use crate::cost::Costs;
use crate::plan::edges::Edges;
use crate::plan::waits::Awaited;
use crate::plan::{Action, Op, Plan, StageId, Task};

/// Units of memory in a byte.
const UNITS: f64 = 1024.0;

/// No cell.
pub(super) const NONE: u32 = u32::MAX;

/// The role of a cell in these passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// Computes.
    Compute,
    /// Starts a transfer or a collective that has its own wait.
    Start,
    /// A transfer or a collective without a wait, which ends in its own cell.
    Whole,
    /// Waits for a start.
    Wait,
    /// Frees gathered parameters.
    Release,
}

impl Role {
    pub(super) fn starts(self) -> bool {
        matches!(self, Role::Start | Role::Whole)
    }

    pub(super) fn waits(self) -> bool {
        matches!(self, Role::Wait | Role::Whole)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    pub(super) action: Action,
    pub(super) role: Role,
    /// The seconds that it computes.
    pub(super) seconds: f64,
    /// The seconds of the operation that it starts.
    pub(super) comm: f64,
    /// The memory that counts from before the cell.
    pub(super) alloc: i64,
    /// The memory that no longer counts after the cell.
    pub(super) free: i64,
    /// The wait of a start, or the start of a wait; [`NONE`] for other cells.
    pub(super) partner: u32,
}

impl Cell {
    /// The task of a cell that is not fused.
    pub(super) fn task(&self) -> Option<Task> {
        self.action.tasks().next()
    }
}

pub(super) fn bytes(units: i64) -> f64 {
    units as f64 / UNITS
}

pub(super) fn units(bytes: f64) -> i64 {
    (bytes * UNITS).round() as i64
}

/// The rows of a plan, without idle cells.
pub(super) fn rows(plan: &Plan, costs: &Costs<'_>) -> Vec<Vec<Cell>> {
    let plan = plan.without_idle();
    let awaited = Awaited::new(&plan, &Edges::new(&plan));
    let pricing = Pricing { plan: &plan, costs, training: plan.has_backward(), lowered: plan.is_lowered() };
    (0..plan.ranks()).map(|rank| pricing.row(rank, &awaited)).collect()
}

struct Pricing<'a> {
    plan: &'a Plan,
    costs: &'a Costs<'a>,
    training: bool,
    lowered: bool,
}

impl Pricing<'_> {
    fn row(&self, rank: usize, awaited: &Awaited) -> Vec<Cell> {
        let row = self.plan.row(rank);
        let cell = |(step, &action): (usize, &Action)| self.cell(rank, action, awaited.at(rank, step));
        let mut cells: Vec<Cell> = row.iter().enumerate().map(cell).collect();
        for start in 0..row.len() {
            // Transfers along skip edges never move, so they need no partner.
            let moves = cells[start].task().is_some_and(|task| !task.is_skip());
            if let Some(wait) = awaited.wait_of(rank, start).filter(|_| moves) {
                (cells[start].partner, cells[wait].partner) = (wait as u32, start as u32);
            }
        }
        cells
    }

    fn cell(&self, rank: usize, action: Action, awaited: bool) -> Cell {
        let (mut alloc, mut free, mut comm) = (0.0, 0.0, 0.0);
        let mut role = Role::Compute;
        for task in action.tasks() {
            let cost = self.costs.stage(task.stage());
            // A stage that recomputes holds its recomputed activations from `I` (or `B`) on.
            let all = cost.activation_bytes + cost.recomputed_bytes;
            // A transfer along a skip edge never moves, so its buffer affects no comparison; the judge's simulation
            // counts it.
            let payload = payload_of(task).map_or(0.0, |stage| self.costs.stage(stage).message_bytes);
            match task.op() {
                Op::Forward => {
                    alloc += cost.activation_bytes;
                    let keeps = self.training && task.stage().index() >= self.plan.first_trained();
                    free += if keeps { 0.0 } else { cost.activation_bytes };
                    free += self.received(rank, task.stage().previous(), task.stage().previous());
                }
                _ if self.plan.begins_backward(task) => {
                    let whole = task.op() != Op::BackwardInput;
                    alloc += cost.recomputed_bytes;
                    free += if whole { all } else { cost.freed_at_input_bytes };
                    let next = self.plan.placement().next(task.stage());
                    free += self.received(rank, next, Some(task.stage()));
                }
                Op::BackwardWeight => free += all - cost.freed_at_input_bytes,
                Op::ReceiveForward | Op::ReceiveBackward => alloc += payload,
                Op::SendForward | Op::SendBackward if awaited => alloc += payload,
                Op::WaitSendForward | Op::WaitSendBackward => free += payload,
                Op::Unshard => alloc += cost.unsharded_bytes,
                Op::Reshard => free += cost.unsharded_bytes,
                _ => {}
            }
            role = role_of(task.op(), awaited);
            comm += if role.starts() { self.seconds(rank, task) } else { 0.0 };
        }
        let seconds = if role == Role::Compute { self.costs.action_seconds(action) } else { 0.0 };
        Cell { action, role, seconds, comm, alloc: units(alloc), free: units(free), partner: NONE }
    }

    /// The bytes of a value from another rank, which are freed once it is used.
    fn received(&self, rank: usize, from: Option<StageId>, output_of: Option<StageId>) -> f64 {
        match (from, output_of) {
            (Some(from), Some(stage)) if self.lowered && self.plan.placement().rank_of(from) != rank => {
                self.costs.stage(stage).message_bytes
            }
            _ => 0.0,
        }
    }

    /// The seconds of a transfer or a collective; 0 for a transfer along a skip edge.
    fn seconds(&self, rank: usize, task: Task) -> f64 {
        if !task.op().is_transfer() {
            return self.costs.task_seconds(task);
        }
        let placement = self.plan.placement();
        let (Some(peer), Some(output_of)) = (placement.peer(task), payload_of(task)) else { return 0.0 };
        let peer = placement.rank_of(peer);
        let (from, to) = if task.op().is_send() { (rank, peer) } else { (peer, rank) };
        self.costs.crossing_seconds(from, to, output_of)
    }
}

fn role_of(op: Op, awaited: bool) -> Role {
    match op {
        Op::Reshard => Role::Release,
        op if op.is_compute() => Role::Compute,
        op if op.is_wait() => Role::Wait,
        _ if awaited => Role::Start,
        _ => Role::Whole,
    }
}

/// The stage whose output (or its gradient) a transfer between neighbours moves. `None` for all else, including
/// transfers along skip edges.
fn payload_of(task: Task) -> Option<StageId> {
    task.output_of().filter(|_| !task.is_skip())
}
