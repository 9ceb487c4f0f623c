//! Removes idle cells, and inserts them so that rows line up in time.
//!
//! ```text
//! stripped   rank 0: 0F0 0F1 0B0 0B1          aligned   rank 0: 0F0 0F1     0B0     0B1
//!            rank 1: 1F0 1B0 1F1 1B1                    rank 1:     1F0 1B0 1F1 1B1
//! ```
//!
//! Guarantees: neither changes what a plan does; both are idempotent, and one undoes the other. In an aligned plan the
//! index of a cell is the unit time step in which it runs: every cell takes one step, fused cells and transfers too, and
//! starts in the first step after all that it needs. So a line of the [`grid`](crate::plan::Plan::grid) is one moment.
//!
//! A cell needs the one before it in its row, its stage's neighbour (in an unlowered plan on any rank, in a lowered one on
//! the same rank), and, if it is a receive, its send. Where a receive has a wait of its own, the wait needs the send
//! instead.

use crate::plan::edges::{Edges, Side};
use crate::plan::waits::Awaited;
use crate::plan::{Action, Op, Plan, Task};

/// The same plan without idle cells.
pub fn strip_idle(plan: &Plan) -> Plan {
    let strip = |row: &Vec<Action>| row.iter().copied().filter(|action| !action.is_idle()).collect();
    plan.with_rows(plan.rows().iter().map(strip).collect())
}

/// The same plan with idle cells where a rank waits, so that rows line up by unit time steps.
///
/// If the plan deadlocks, the cells that can never start follow unaligned at the end of their rows. A plan that names far
/// more microbatches than it has cells for is only stripped. The result has up to ranks times steps cells.
///
/// ```
/// use burn_pipeline_plan::{pass, plan::Plan};
/// let plan = Plan::from_csv("mine", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")?;
/// assert_eq!(pass::align_idle(&plan).to_csv(), "0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1\n");
/// # Ok::<(), burn_pipeline_plan::plan::PlanCsvError>(())
/// ```
pub fn align_idle(plan: &Plan) -> Plan {
    let stripped = strip_idle(plan);
    let edges = Edges::new(plan);
    if edges.is_sparse(plan) {
        return stripped;
    }
    let mut clock = Clock {
        plan: &stripped,
        edges: &edges,
        awaited: Awaited::new(&stripped, &edges),
        lowered: plan.is_lowered(),
        ended: vec![[0; 4]; edges.pairs() + edges.skip_pairs()],
        waiting: vec![None; plan.ranks()],
        next: vec![0; plan.ranks()],
        rows: stripped.rows().iter().map(|row| Vec::with_capacity(row.len() * 2)).collect(),
    };
    let mut ready: Vec<usize> = (0..plan.ranks()).collect();
    while let Some(rank) = ready.pop() {
        clock.run(rank, &mut ready);
    }
    let mut rows = clock.rows;
    for (rank, row) in rows.iter_mut().enumerate() {
        row.extend_from_slice(&stripped.row(rank)[clock.next[rank]..]);
    }
    stripped.with_rows(rows)
}

/// A value of one pair: which of its four events makes it.
type Value = (usize, usize);
const FORWARD: usize = 0;
const BACKWARD: usize = 1;
const SENT_FORWARD: usize = 2;
const SENT_BACKWARD: usize = 3;

struct Clock<'a> {
    plan: &'a Plan,
    edges: &'a Edges,
    awaited: Awaited,
    lowered: bool,
    /// For each pair and event, the step after the one in which it happened; 0 if it has not.
    ended: Vec<[usize; 4]>,
    /// What a waiting rank waits for.
    waiting: Vec<Option<Value>>,
    next: Vec<usize>,
    rows: Vec<Vec<Action>>,
}

impl Clock<'_> {
    /// Places a rank's cells until one has to wait. Ranks that waited for one of them become ready.
    fn run(&mut self, rank: usize, ready: &mut Vec<usize>) {
        while let Some(&action) = self.plan.row(rank).get(self.next[rank]) {
            let mut start = self.rows[rank].len();
            let starts = self.awaited.at(rank, self.next[rank]);
            for value in action.tasks().filter(|_| !starts).filter_map(|task| self.needs(task)) {
                let ended = self.ended[value.0][value.1];
                if ended == 0 {
                    self.waiting[rank] = Some(value);
                    return;
                }
                start = start.max(ended);
            }
            self.rows[rank].resize(start, Action::Idle);
            self.rows[rank].push(action);
            self.next[rank] += 1;
            let edges = self.edges;
            for (value, peer) in action.tasks().filter_map(|task| gives(edges, task)) {
                self.ended[value.0][value.1] = start + 1;
                if self.waiting[peer] == Some(value) {
                    self.waiting[peer] = None;
                    ready.push(peer);
                }
            }
        }
    }

    /// The value that a task needs and that another task makes.
    fn needs(&self, task: Task) -> Option<Value> {
        let (slot, pair) = pair(self.edges, task)?;
        let at = &self.edges.slots()[slot];
        if task.is_skip() {
            let sends = task.op().awaits().unwrap_or(task.op()).is_send();
            return skip_value(self.edges, task).filter(|_| !sends);
        }
        let crosses = |side: Side| side == Side::SameRank || (side == Side::OtherRank && !self.lowered);
        match task.op() {
            Op::Forward if crosses(at.before) => Some((pair - at.microbatches, FORWARD)),
            Op::BackwardInput | Op::Backward if crosses(at.after) => Some((pair + at.microbatches, BACKWARD)),
            Op::ReceiveForward | Op::WaitReceiveForward if at.before != Side::End => {
                Some((pair - at.microbatches, SENT_FORWARD))
            }
            Op::ReceiveBackward | Op::WaitReceiveBackward if at.after != Side::End => {
                Some((pair + at.microbatches, SENT_BACKWARD))
            }
            _ => None,
        }
    }
}

/// The dense number of a task's stage and pair, if the plan has them.
fn pair(edges: &Edges, task: Task) -> Option<(usize, usize)> {
    let slot = edges.find(task.stage())?;
    let at = &edges.slots()[slot];
    task.microbatch().filter(|&m| m < at.microbatches).map(|m| (slot, at.base + m))
}

/// The value that a transfer past a neighbour moves: numbered after those of all pairs.
fn skip_value(edges: &Edges, task: Task) -> Option<Value> {
    let (base, microbatch) = (edges.skips()[edges.find_skip(task)?].base, task.microbatch()?);
    let forward = matches!(task.op().awaits().unwrap_or(task.op()), Op::SendForward | Op::ReceiveForward);
    Some((edges.pairs() + base + microbatch, if forward { SENT_FORWARD } else { SENT_BACKWARD }))
}

/// The value that a task makes, and the rank that may wait for it.
fn gives(edges: &Edges, task: Task) -> Option<(Value, usize)> {
    let (slot, pair) = pair(edges, task)?;
    let at = &edges.slots()[slot];
    if let Some(peer) = task.skip_peer() {
        let peer = edges.find(peer).map(|slot| edges.slots()[slot].rank);
        return skip_value(edges, task).filter(|_| task.op().is_send()).zip(peer);
    }
    let (event, side, neighbour) = match task.op() {
        Op::Forward => (FORWARD, at.after, slot + 1),
        Op::SendForward => (SENT_FORWARD, at.after, slot + 1),
        Op::BackwardInput | Op::Backward => (BACKWARD, at.before, slot.wrapping_sub(1)),
        Op::SendBackward => (SENT_BACKWARD, at.before, slot.wrapping_sub(1)),
        _ => return None,
    };
    (side != Side::End).then(|| ((pair, event), edges.slots()[neighbour].rank))
}
