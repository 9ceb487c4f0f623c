//! One order of all messages that every rank follows.
//!
//! Guarantees: [`is_common`] says whether there is one, in linear time. A plan whose rows follow one
//! cannot deadlock, for any waits and any transport. Proof: of all messages that ranks wait for, take the first in
//! the order. Its other end waits for no earlier message, so it can continue until it has started this one.
//!
//! Rows from [`Plan::with_transfers`] follow one. Rows in which two ranks start the same two messages in opposite
//! orders, which is legal only with waits, do not. They get one as follows:
//!
//! 1. Messages are ordered by their start time in simulation, simultaneous ones by a dry run, so that no message
//!    precedes one that it needs.
//! 2. Each row is rescheduled with its sends and receives in that order, everything else in its previous order.
//!
//! The counterpart for point-to-point messages of `decide_global_ordering_of_comms` in PyTorch's
//! `torch/_inductor/comms.py`, which keeps the order of the program.

use super::cell::Cell;
use crate::plan::{Action, Op, Plan, Task};
use crate::simulate::Simulation;
use std::collections::{HashMap, HashSet, VecDeque};

/// Returns true if there is an order of all messages that every rank follows with its sends and receives.
pub(super) fn is_common(plan: &Plan) -> bool {
    let rows: Vec<Vec<Task>> = (0..plan.ranks()).map(|rank| messages(plan, rank).collect()).collect();
    let mut next = vec![0; rows.len()];
    // The ranks that have reached each message; once both have, the message is next in the order.
    let mut ends: HashMap<Task, Vec<usize>> = HashMap::new();
    let mut ready: VecDeque<usize> = (0..rows.len()).collect();
    while let Some(rank) = ready.pop_front() {
        let Some(&send) = rows[rank].get(next[rank]) else { continue };
        let there = ends.entry(send).or_default();
        there.push(rank);
        if there.len() == 2 {
            for rank in std::mem::take(there) {
                next[rank] += 1;
                ready.push_back(rank);
            }
        }
    }
    (0..rows.len()).all(|rank| next[rank] == rows[rank].len())
}

/// The messages that a rank sends and receives, as their sends, in the order of its row.
fn messages(plan: &Plan, rank: usize) -> impl Iterator<Item = Task> + '_ {
    plan.tasks(rank).filter_map(|task| sent_by(plan, task))
}

/// The send of a message, given its send or its receive.
fn sent_by(plan: &Plan, task: Task) -> Option<Task> {
    match task.op() {
        op if op.is_send() => Some(task),
        op if op.is_transfer() => plan.placement().peer(task).and_then(|_| task.other_end()),
        _ => None,
    }
}

/// The index of each message in the order of start times.
pub(super) fn by_time(plan: &Plan, step: &Simulation) -> HashMap<Task, u32> {
    let times: HashMap<Task, f64> =
        step.events.iter().filter_map(|event| Some((single(event.action)?, event.start))).collect();
    // A stable sort keeps simultaneous messages in the order of the dry run, where none precedes one that it needs.
    let mut sends = dry_run(plan);
    sends.sort_by(|a, b| times.get(a).unwrap_or(&0.0).total_cmp(times.get(b).unwrap_or(&0.0)));
    sends.into_iter().zip(0..).collect()
}

fn single(action: Action) -> Option<Task> {
    match action {
        Action::Single(task) => Some(task),
        _ => None,
    }
}

/// All sends in an order that is possible if sends never wait.
fn dry_run(plan: &Plan) -> Vec<Task> {
    let rows: Vec<Vec<Task>> = (0..plan.ranks()).map(|rank| plan.tasks(rank).collect()).collect();
    let mut sent: HashSet<Task> = HashSet::new();
    let mut waiting: HashMap<Task, usize> = HashMap::new();
    let mut next = vec![0; rows.len()];
    let mut order = Vec::new();
    let mut ready: VecDeque<usize> = (0..rows.len()).collect();
    while let Some(rank) = ready.pop_front() {
        while let Some(&task) = rows[rank].get(next[rank]) {
            if let Some(needs) = used_message(plan, rank, task).filter(|needs| !sent.contains(needs)) {
                waiting.insert(needs, rank);
                break;
            }
            if task.op().is_send() {
                order.push(task);
                sent.insert(task);
                ready.extend(waiting.remove(&task));
            }
            next[rank] += 1;
        }
    }
    order
}

/// The message from another rank that a computation uses.
fn used_message(plan: &Plan, rank: usize, task: Task) -> Option<Task> {
    let input = plan.input_of(task.of_microbatch()?)?;
    let send = if input.op() == Op::Forward { Op::SendForward } else { Op::SendBackward };
    (plan.placement().rank_of(input.stage()) != rank).then(|| input.with(input.stage(), send).into())
}

/// The edges that put a row's sends and receives into the given order, and keep its collectives in theirs.
pub(super) fn chain(plan: &Plan, cells: &[Cell], places: &HashMap<Task, u32>) -> Vec<(u32, u32)> {
    let mut transfers: Vec<(u32, u32)> = Vec::new();
    let mut collectives: Vec<u32> = Vec::new();
    for (cell, content) in cells.iter().enumerate().filter(|(_, content)| content.role.starts()) {
        let place = content.task().and_then(|task| places.get(&sent_by(plan, task)?).copied());
        match place {
            Some(place) => transfers.push((place, cell as u32)),
            None => collectives.push(cell as u32),
        }
    }
    transfers.sort_unstable();
    let pairs = transfers.windows(2).map(|pair| (pair[0].1, pair[1].1));
    pairs.chain(collectives.windows(2).map(|pair| (pair[0], pair[1]))).collect()
}
