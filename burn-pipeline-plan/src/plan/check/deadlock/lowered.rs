//! Step 1 of the [deadlock check](super): runs the transfers of a lowered plan under a transport.
//!
//! Each rank runs until it has to wait; a start wakes the peer if it waits. In a plan without waits under rendezvous,
//! both ends of a transfer pass it together, so nothing is counted.

use super::cycle::deadlock;
use crate::plan::check::channels::{Channel, Order, Transfer, Transfers, locate};
use crate::plan::check::error::CheckError;
use crate::plan::check::options::Transport;
use crate::plan::rows::Plan;
use crate::plan::vocabulary::VocabularyLayers;
use crate::plan::waiting::Waiting;

/// Refuses a lowered plan that deadlocks under a transport.
pub(in crate::plan::check) fn refuse_lowered(
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
    /// The number of payloads that a channel holds.
    capacity: usize,
    lists: Vec<&'a [Transfer]>,
    next: Vec<usize>,
    /// For each rank: true if it has started the transfer that it waits for.
    posted: Vec<bool>,
    vocabulary: VocabularyLayers,
    /// The number of ranks that have started each collective.
    collectives: Vec<u32>,
    /// The receives and sends started, by channel.
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
        let vocabulary = VocabularyLayers::of(plan);
        let values = if transfers.has_waits() { order.values.iter().max().map_or(0, |&v| v as usize + 1) } else { 0 };
        Self {
            transfers,
            order,
            capacity,
            lists: (0..plan.ranks()).map(|rank| transfers.of(rank)).collect(),
            next: vec![0; plan.ranks()],
            posted: vec![false; plan.ranks()],
            vocabulary,
            collectives: vec![0; vocabulary.collectives()],
            started: vec![[0; 2]; transfers.channels.len()],
            numbers: vec![0; values],
        }
    }

    /// Runs a rank until it has to wait, and marks the peer of each started transfer as ready.
    fn advance(&mut self, rank: usize, ready: &mut Vec<usize>) {
        if self.capacity == 0 && self.numbers.is_empty() {
            return self.advance_jointly(rank, ready);
        }
        while let Some(&transfer) = self.lists[rank].get(self.next[rank]) {
            if transfer.is_collective() {
                if !self.pass_collective(rank, transfer, ready) {
                    return;
                }
                continue;
            }
            if transfer.starts() && !self.posted[rank] {
                let started = &mut self.started[transfer.channel()][usize::from(transfer.sends())];
                if let Some(number) = self.numbers.get_mut(transfer.value() as usize) {
                    *number = *started as u32;
                }
                *started += 1;
                self.posted[rank] = true;
                // The peer may wait for this. It is woken at most once per start, which keeps the time linear.
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

    /// Does the same under rendezvous in a plan without waits: both ends of a transfer pass it together or not at
    /// all, so nothing is counted.
    fn advance_jointly(&mut self, rank: usize, ready: &mut Vec<usize>) {
        while let Some(&transfer) = self.lists[rank].get(self.next[rank]) {
            if transfer.is_collective() {
                if !self.pass_collective(rank, transfer, ready) {
                    return;
                }
                continue;
            }
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

    /// Starts a collective, or passes a use of it. Returns false if some rank has not started it.
    fn pass_collective(&mut self, rank: usize, transfer: Transfer, ready: &mut Vec<usize>) -> bool {
        let (all, started) = (self.lists.len(), &mut self.collectives[transfer.value() as usize]);
        if transfer.starts() {
            *started += 1;
            if *started as usize == all {
                ready.extend(0..all);
            }
        } else if (*started as usize) < all {
            return false;
        }
        self.next[rank] += 1;
        true
    }

    /// Returns true if a transfer that its rank has started has ended.
    #[inline]
    fn is_over(&self, transfer: Transfer) -> bool {
        let [received, sent] = self.started[transfer.channel()];
        let own = if transfer.sends() { sent } else { received };
        let number = if transfer.starts() { own - 1 } else { self.numbers[transfer.value() as usize] as usize };
        // A send waits for the receive that frees its buffer slot, a receive for its send.
        if transfer.sends() { number < self.capacity || received > number - self.capacity } else { sent > number }
    }

    /// What a waiting rank waits for, and the rank whose row has it.
    fn wait(&self, plan: &Plan, rank: usize) -> Option<Waiting> {
        let transfer = *self.lists[rank].get(self.next[rank])?;
        if transfer.is_collective() {
            let begun = |rank: usize| {
                let done = &self.lists[rank][..self.next[rank]];
                done.iter().any(|t| t.is_collective() && t.starts() && t.value() == transfer.value())
            };
            let on = (0..self.lists.len()).find(|&rank| !begun(rank))?;
            let (step, action, _) = locate(plan, rank, self.next[rank])?;
            let needs = self.vocabulary.collective(transfer.value() as usize).into();
            return Some(Waiting { rank, step, action, needs, on });
        }
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
        Some(Waiting { rank, step, action, needs, on: peer })
    }
}

#[inline]
fn peer(channel: Channel, transfer: Transfer) -> usize {
    if transfer.sends() { channel.to as usize } else { channel.from as usize }
}
