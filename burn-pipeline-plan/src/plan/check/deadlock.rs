//! Deadlock: ranks run against each other until all reach the end of their rows, or those left wait in a cycle.
//!
//! Guarantees: exact, and linear in transfers (in an unlowered plan, in tasks).
//!
//! - Linear: each step of a rank either carries something out or makes the rank wait, and what it waits for wakes it once.
//! - Exact: which rank runs next makes no difference. A transfer that can be carried out stays possible whatever other
//!   ranks do meanwhile, so every order of running ends in the same state. One order is enough.
//! - Every stuck plan has a cycle: a rank that waits does so for an action in another rank's row (the scan has found it
//!   there) that the other rank has not reached, so that one waits too. There are finitely many ranks, so following
//!   the waits must return to one met before.
//!
//! 1. Lowered: only transfers matter. A compute cell needs nothing beyond its own row (`scan` has proved that), and
//!    collectives run in groups of their own. A start never waits. A receive ends once its send has started. A send ends
//!    once its receive has started (rendezvous) or, with a buffer of K, once the receive K places before its own has. The
//!    rank waits for the end at the transfer itself, or at the wait if there is one.
//! 2. Unlowered: a cell waits for the cell of the neighbouring stage, on whatever rank. A fused cell waits for what both
//!    its tasks need, as it will after lowering, when its receives precede it.

use super::channels::{Channel, Order, Transfer, Transfers, locate};
use super::error::{CheckError, Excerpt, Waiting};
use super::options::Transport;
use crate::plan::edges::{Edges, Side};
use crate::plan::op::Op;
use crate::plan::rows::Plan;
use crate::plan::stage_id::StageId;
use crate::plan::task::Task;

/// Refuses a lowered plan that deadlocks under a transport.
pub(super) fn refuse_lowered(
    plan: &Plan,
    transfers: &Transfers,
    order: &Order,
    transport: Transport,
) -> Result<(), Box<CheckError>> {
    let mut run = Lowered::new(plan, transfers, order, transport);
    let mut ready: Vec<usize> = (0..plan.ranks()).rev().collect();
    while let Some(rank) = ready.pop() {
        run.advance(rank, &mut ready);
    }
    match (0..plan.ranks()).find(|&rank| run.next[rank] < run.lists[rank].len()) {
        None => Ok(()),
        Some(rank) => Err(deadlock(plan, rank, |rank| run.wait(plan, rank), Some(transport))),
    }
}

struct Lowered<'a> {
    transfers: &'a Transfers,
    order: &'a Order,
    /// Payloads that a channel holds.
    capacity: usize,
    lists: Vec<&'a [Transfer]>,
    next: Vec<usize>,
    /// Has the rank started the transfer that it waits at?
    posted: Vec<bool>,
    /// Sends and receives started, by channel.
    started: Vec<[usize; 2]>,
    /// The index of each value in its channel, once an end has started it; empty in a plan without waits.
    numbers: Vec<u32>,
}

impl<'a> Lowered<'a> {
    fn new(plan: &Plan, transfers: &'a Transfers, order: &'a Order, transport: Transport) -> Self {
        let capacity = match transport {
            Transport::Rendezvous => 0,
            Transport::Buffered(payloads) => payloads,
            Transport::Unbounded => usize::MAX,
        };
        let values = if transfers.has_waits() { order.values.iter().max().map_or(0, |&v| v as usize + 1) } else { 0 };
        Self {
            transfers,
            order,
            capacity,
            lists: (0..plan.ranks()).map(|rank| transfers.of(rank)).collect(),
            next: vec![0; plan.ranks()],
            posted: vec![false; plan.ranks()],
            started: vec![[0; 2]; transfers.channels.len()],
            numbers: vec![0; values],
        }
    }

    /// Runs a rank until it has to wait; the peer of what it started becomes ready.
    fn advance(&mut self, rank: usize, ready: &mut Vec<usize>) {
        if self.capacity == 0 && self.numbers.is_empty() {
            return self.advance_jointly(rank, ready);
        }
        while let Some(&transfer) = self.lists[rank].get(self.next[rank]) {
            if transfer.starts() && !self.posted[rank] {
                let started = &mut self.started[transfer.channel()][usize::from(transfer.sends())];
                if let Some(number) = self.numbers.get_mut(transfer.value() as usize) {
                    *number = *started as u32;
                }
                *started += 1;
                self.posted[rank] = true;
                // This may be what the peer waits for. It is woken at most once for each start, which keeps the time linear.
                let peer = peer(self.transfers.channels[transfer.channel()], transfer);
                if ready.last() != Some(&peer) {
                    ready.push(peer);
                }
            }
            if transfer.waits() && !self.is_over(transfer) {
                return;
            }
            self.posted[rank] = false;
            self.next[rank] += 1;
        }
    }

    /// The same under rendezvous in a plan without waits, where it is twice as simple: both ends of a transfer pass it
    /// together, or neither does.
    fn advance_jointly(&mut self, rank: usize, ready: &mut Vec<usize>) {
        while let Some(&transfer) = self.lists[rank].get(self.next[rank]) {
            let peer = peer(self.transfers.channels[transfer.channel()], transfer);
            let meets = |other: &&Transfer| other.channel() == transfer.channel() && other.sends() != transfer.sends();
            if self.lists[peer].get(self.next[peer]).filter(meets).is_none() {
                return;
            }
            self.next[peer] += 1;
            self.next[rank] += 1;
            if ready.last() != Some(&peer) {
                ready.push(peer);
            }
        }
    }

    /// Has a transfer that its rank has started ended?
    #[inline]
    fn is_over(&self, transfer: Transfer) -> bool {
        let [received, sent] = self.started[transfer.channel()];
        let own = if transfer.sends() { sent } else { received };
        let number = if transfer.starts() { own - 1 } else { self.numbers[transfer.value() as usize] as usize };
        // A send waits for the receive that makes room for it, a receive for its send.
        if transfer.sends() { number < self.capacity || received > number - self.capacity } else { sent > number }
    }

    /// What a waiting rank waits for, and the rank that has it in its row.
    fn wait(&self, plan: &Plan, rank: usize) -> Option<(Waiting, usize)> {
        let transfer = *self.lists[rank].get(self.next[rank])?;
        let (channel, starts) = (transfer.channel(), &self.order.starts);
        let values = &self.order.values[starts[channel]..starts[channel + 1]];
        let own = values.iter().position(|&value| value == transfer.value())?;
        let wanted = if transfer.sends() { own.checked_sub(self.capacity)? } else { own };
        let value = *values.get(wanted)?;
        let peer = peer(self.transfers.channels[channel], transfer);
        let started = |t: &Transfer| t.starts() && t.channel() == channel && t.sends() != transfer.sends();
        let there = self.lists[peer].iter().position(|t| started(t) && t.value() == value)?;
        let (step, action, _) = locate(plan, rank, self.next[rank])?;
        let (_, _, needs) = locate(plan, peer, there)?;
        Some((Waiting { rank, step, action, needs }, peer))
    }
}

#[inline]
fn peer(channel: Channel, transfer: Transfer) -> usize {
    if transfer.sends() { channel.to as usize } else { channel.from as usize }
}

/// The cycle that a waiting rank's waits lead to, as an error.
#[cold]
fn deadlock(
    plan: &Plan,
    start: usize,
    waits: impl Fn(usize) -> Option<(Waiting, usize)>,
    transport: Option<Transport>,
) -> Box<CheckError> {
    let mut met = vec![usize::MAX; plan.ranks()];
    let mut path: Vec<Waiting> = Vec::new();
    let mut rank = start;
    while met[rank] == usize::MAX {
        met[rank] = path.len();
        let Some((waiting, peer)) = waits(rank) else { break };
        path.push(waiting);
        rank = peer;
    }
    let cycle = path.split_off(met[rank].min(path.len().saturating_sub(1)));
    let (at, step) = cycle.first().map_or((start, 0), |waiting| (waiting.rank, waiting.step));
    Box::new(CheckError::Deadlock { transport, cycle, grid: Excerpt::new(plan.rows(), at, step) })
}

const FORWARD: u8 = 1;
const BACKWARD: u8 = 2;

/// Refuses an unlowered plan that deadlocks even though values need no transfers.
pub(super) fn refuse_unlowered(plan: &Plan, edges: &Edges) -> Result<(), Box<CheckError>> {
    let mut run = Unlowered {
        plan,
        edges,
        done: vec![0; edges.pairs()],
        next: vec![0; plan.ranks()],
        waiting: vec![None; plan.ranks()],
    };
    let mut ready: Vec<usize> = (0..plan.ranks()).rev().collect();
    while let Some(rank) = ready.pop() {
        run.advance(rank, &mut ready);
    }
    match run.waiting.iter().position(Option::is_some) {
        None => Ok(()),
        Some(rank) => Err(deadlock(plan, rank, |rank| run.wait(rank), None)),
    }
}

/// A value that another rank computes: the pair that computes it, and `FORWARD` or `BACKWARD`.
type Value = (usize, u8);

struct Unlowered<'a> {
    plan: &'a Plan,
    edges: &'a Edges,
    done: Vec<u8>,
    next: Vec<usize>,
    waiting: Vec<Option<Value>>,
}

impl Unlowered<'_> {
    /// Runs a rank until it has to wait. Ranks that waited for what it computed become ready.
    fn advance(&mut self, rank: usize, ready: &mut Vec<usize>) {
        while let Some(action) = self.plan.row(rank).get(self.next[rank]) {
            self.waiting[rank] = action.tasks().filter_map(|task| self.needs(task)).find(|need| !self.has(*need));
            if self.waiting[rank].is_some() {
                return;
            }
            let edges = self.edges;
            for (value, peer) in action.tasks().filter_map(|task| gives(edges, task)) {
                self.done[value.0] |= value.1;
                if self.waiting[peer] == Some(value) {
                    ready.push(peer);
                }
            }
            self.next[rank] += 1;
        }
    }

    fn has(&self, (pair, event): Value) -> bool {
        self.done[pair] & event != 0
    }

    /// What a task needs from another rank.
    #[inline]
    fn needs(&self, task: Task) -> Option<Value> {
        let at = &self.edges.slots()[self.edges.find(task.stage())?];
        let pair = at.base + task.microbatch()?;
        match task.op() {
            Op::Forward if at.before == Side::OtherRank => Some((pair - at.microbatches, FORWARD)),
            Op::BackwardInput | Op::Backward if at.after == Side::OtherRank => Some((pair + at.microbatches, BACKWARD)),
            _ => None,
        }
    }

    fn wait(&self, rank: usize) -> Option<(Waiting, usize)> {
        let step = self.next[rank];
        let action = *self.plan.row(rank).get(step)?;
        let task = action.tasks().find(|task| self.needs(*task).is_some_and(|need| !self.has(need)))?;
        let forward = task.op() == Op::Forward;
        let index = task.stage().index().saturating_add_signed(if forward { -1 } else { 1 });
        let stage = StageId::in_replica(task.stage().replica(), index);
        let needs = Task::new(stage, if forward { Op::Forward } else { Op::Backward }, task.microbatch()?);
        Some((Waiting { rank, step, action, needs }, self.plan.placement().rank_of(stage)))
    }
}

/// What a task computes for another rank, and that rank.
#[inline]
fn gives(edges: &Edges, task: Task) -> Option<(Value, usize)> {
    let slot = edges.find(task.stage())?;
    let at = &edges.slots()[slot];
    let pair = at.base + task.microbatch()?;
    match task.op() {
        Op::Forward if at.after == Side::OtherRank => Some(((pair, FORWARD), edges.slots()[slot + 1].rank)),
        Op::BackwardInput | Op::Backward if at.before == Side::OtherRank => {
            Some(((pair, BACKWARD), edges.slots()[slot - 1].rank))
        }
        _ => None,
    }
}
