//! Deadlock: ranks run against each other until all have ended, or those left stand in a circle.
//!
//! Guarantees: linear in transfers (or, unlowered, in tasks), since each step of a rank either carries something
//! out or makes it wait, and what it waits for wakes it once. It is exact: running is confluent (carrying
//! something out never takes a choice from another rank), so what is left standing in one order of running is
//! left standing in every one.
//!
//! 1. Lowered: only transfers matter, since a compute cell needs nothing that its own row does not give it
//!    ([`once`](super::once)). Under rendezvous a send and its receive are carried out together, once both ranks
//!    stand there. Under a buffer of K the send goes ahead while the channel holds fewer than K payloads.
//! 2. Unlowered: a cell waits for the cell of the neighbouring stage, wherever that is. A fused cell waits for
//!    what both its tasks need, as it will once it is lowered and its sends follow it.
//! 3. A rank left standing waits for something that another one has in its row and has not reached, so that one
//!    stands too: following the waits must come round.

use super::channels::{Channel, Order, Transfer, Transfers, locate};
use super::error::{CheckError, Excerpt, Waiting};
use super::{Edges, Transport};
use crate::plan::edges::Side;
use crate::plan::{Op, Plan, Stage, Task};

/// Refuses a lowered plan that can get stuck under a transport.
pub(super) fn refuse_lowered(
    plan: &Plan,
    transfers: &Transfers,
    order: &Order,
    transport: Transport,
) -> Result<(), Box<CheckError>> {
    let capacity = match transport {
        Transport::Rendezvous => 0,
        Transport::Buffered(payloads) => payloads,
        Transport::Unbounded => usize::MAX,
    };
    let ranks = plan.ranks();
    let lists: Vec<&[Transfer]> = (0..ranks).map(|rank| transfers.of(rank)).collect();
    let mut next = vec![0usize; ranks];
    let mut counts = vec![Counts::default(); transfers.channels.len()];
    let mut ready: Vec<usize> = (0..ranks).rev().collect();
    while let Some(rank) = ready.pop() {
        while let Some(&transfer) = lists[rank].get(next[rank]) {
            let peer = peer(transfers.channels[transfer.channel()], transfer);
            if capacity == 0 {
                let meets =
                    |other: &&Transfer| other.channel() == transfer.channel() && other.sends() != transfer.sends();
                if lists[peer].get(next[peer]).filter(meets).is_none() {
                    break;
                }
                next[peer] += 1;
            } else if !counts[transfer.channel()].carry_out(transfer, capacity) {
                break;
            }
            next[rank] += 1;
            // The peer may stand where this lets it go on. It is asked at most once for each transfer carried out.
            if ready.last() != Some(&peer) {
                ready.push(peer);
            }
        }
    }
    match (0..ranks).find(|&rank| next[rank] < lists[rank].len()) {
        None => Ok(()),
        Some(rank) => {
            let waits = |rank: usize| lowered_wait(plan, transfers, order, capacity, &next, rank);
            Err(deadlock(plan, rank, waits, Some(transport)))
        }
    }
}

/// Payloads that have gone into a channel and come out of it.
#[derive(Clone, Copy, Default)]
struct Counts {
    sent: usize,
    received: usize,
}

impl Counts {
    /// Carries a transfer out if the channel lets it.
    #[inline]
    fn carry_out(&mut self, transfer: Transfer, capacity: usize) -> bool {
        let inside = self.sent - self.received;
        let free = if transfer.sends() { inside < capacity } else { inside > 0 };
        self.sent += usize::from(free && transfer.sends());
        self.received += usize::from(free && !transfer.sends());
        free
    }
}

#[inline]
fn peer(channel: Channel, transfer: Transfer) -> usize {
    if transfer.sends() { channel.to as usize } else { channel.from as usize }
}

/// What a standing rank waits for, and the rank that has it: a receive waits for its send; a send for its
/// receive, or for the one that makes room in the buffer.
fn lowered_wait(
    plan: &Plan,
    transfers: &Transfers,
    order: &Order,
    capacity: usize,
    next: &[usize],
    rank: usize,
) -> Option<(Waiting, usize)> {
    let transfer = *transfers.of(rank).get(next[rank])?;
    let channel = transfer.channel();
    let same = |t: &Transfer, sends: bool| t.channel() == channel && t.sends() == sends;
    let own = transfers.of(rank)[..next[rank]].iter().filter(|t| same(t, transfer.sends())).count();
    let wanted = if transfer.sends() { own.checked_sub(capacity)? } else { own };
    let value = order.values.get(order.starts[channel] + wanted)?;
    let peer = peer(transfers.channels[channel], transfer);
    let there = transfers.of(peer).iter().position(|t| same(t, !transfer.sends()) && t.value() == *value)?;
    let (step, action, _) = locate(plan, rank, next[rank])?;
    let (_, _, needs) = locate(plan, peer, there)?;
    Some((Waiting { rank, step, action, needs }, peer))
}

/// The circle that a standing rank's waits lead to, as an error.
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

/// Refuses an unlowered plan whose order of cells cannot be followed even if values travelled by magic.
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

/// A value that another rank makes: the pair that makes it, and `FORWARD` or `BACKWARD`.
type Value = (usize, u8);

struct Unlowered<'a> {
    plan: &'a Plan,
    edges: &'a Edges,
    done: Vec<u8>,
    next: Vec<usize>,
    waiting: Vec<Option<Value>>,
}

impl Unlowered<'_> {
    /// Runs a rank until it has to wait; ranks that waited for something that it made become ready.
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
        let stage = Stage::in_replica(task.stage().replica(), index);
        let needs = Task::new(stage, if forward { Op::Forward } else { Op::Backward }, task.microbatch()?);
        Some((Waiting { rank, step, action, needs }, self.plan.placement().rank_of(stage)))
    }
}

/// What a task makes for another rank, and that rank.
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
