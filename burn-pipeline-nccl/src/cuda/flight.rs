//! Launches, from the call to the completed event.
//!
//! Guarantees: the memory of a launch is kept until the event after it has completed, whatever fails; no launch is
//! in flight longer than the pipeline's timeout without an error.

use super::error::{NcclError, PeerError, stop_reason, with};
use super::gpu::Event;
use super::inbox::Content;
use super::launch::{Announcement, Flight, Landing};
use super::progress::Progress;
use super::queue::Queue;
use super::tensors::Pinned;
use crate::host::turns::Lane;
use burn_pipeline::link::kit::Mesh;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a collective's launch is awaited before the next member launches it too. A launch takes microseconds,
/// except if NCCL first connects the members, which needs all of them.
const CONNECTS: Duration = Duration::from_millis(5);

impl Progress {
    /// Launches on a lane's queue by this call, and keeps the memory that it uses, even if it fails: part of it may be
    /// in the queue.
    pub(super) fn launch(
        &mut self,
        lane: Lane,
        (peer, tell): (usize, Option<Announcement>),
        call: impl FnOnce(&Queue) -> Result<(), NcclError>,
        held: Vec<Pinned>,
        landing: Landing,
    ) -> Result<(), NcclError> {
        let what = "a group of transfers";
        let reason = || format!("{lane:?} has no communicator, or this rank is not in it");
        let queue = self.queues.get_mut(&lane).ok_or_else(|| NcclError::Stopped { what, reason: reason() })?;
        if let Some(counter) = &mut self.counter {
            counter.order(&queue.stream)?;
        }
        let event = Arc::new(Event::new(&self.order.gpu)?);
        let queued = call(queue).and_then(|()| settle(lane, queue, &self.mesh, self.timeout.get(), tell));
        // Only what is really in the queue comes before the event.
        let recorded = queued.and_then(|()| event.record(&queue.stream));
        let (since, pins) = (Instant::now(), Vec::new());
        queue.flights.push(Flight { event, peer, since, held, pins, landing });
        recorded
    }

    /// All ranks have launched the first launch of a lane of which that was not known.
    pub(super) fn whole(&mut self, lane: Lane) {
        let early = self.order.gives_out_early();
        let flight = self.queues.get_mut(&lane).and_then(|queue| queue.flights.noted());
        if let Some(flight) = flight.filter(|_| early) {
            give_out(flight, &self.mesh, true);
        }
    }

    /// Removes completed launches, and checks for errors.
    pub(super) fn poll(&mut self) -> Result<(), PeerError> {
        for queue in self.queues.values_mut() {
            while let Some(flight) = queue.flights.oldest() {
                let peer = flight.peer;
                if !flight.event.is_complete().map_err(with(peer))? {
                    let late = flight.since.elapsed() > self.timeout.get();
                    queue.communicator.is_settled("a group of transfers").map_err(with(peer))?;
                    if late {
                        return Err(with(peer)(NcclError::Timeout { what: "a group of transfers" }));
                    }
                    break;
                }
                if let Some(mut flight) = queue.flights.completed() {
                    give_out(&mut flight, &self.mesh, false);
                }
            }
        }
        Ok(())
    }
}

/// Waits until a launch is really in the queue, and tells the other rank.
fn settle(
    lane: Lane,
    queue: &Queue,
    mesh: &Mesh,
    timeout: Duration,
    mut tell: Option<Announcement>,
) -> Result<(), NcclError> {
    let (what, now) = ("queuing a group of transfers", Instant::now());
    let stop = || stop_reason(mesh);
    let mut settled = queue.communicator.settle(what, now + CONNECTS, &stop);
    if matches!(settled, Err(NcclError::Timeout { .. })) {
        if let Some(tell) = tell.take_if(|_| matches!(lane, Lane::Set(_))) {
            tell.send(mesh);
        }
        settled = queue.communicator.settle(what, now + timeout, &stop);
    }
    if let (Ok(()), Some(tell)) = (&settled, tell) {
        tell.send(mesh);
    }
    settled
}

/// Releases received tensors to their receiver. Their memory stays pinned until the launch has completed.
fn give_out(flight: &mut Flight, mesh: &Mesh, early: bool) {
    let after = early.then(|| flight.event.clone());
    let mut release = |pinned: Pinned| {
        let (tensor, pin) = pinned.into_parts();
        flight.pins.push(pin);
        tensor
    };
    match std::mem::replace(&mut flight.landing, Landing::Nowhere) {
        Landing::Nowhere => return,
        Landing::Slot(slot, landed) => {
            slot.fill(Content::Device(landed.into_iter().map(&mut release).collect(), after));
        }
        Landing::Sums(sums, done) => {
            let sums = sums.into_iter().map(|sum| sum.map(&mut release)).collect();
            // This fails if the caller has given up.
            let _ = done.send(Ok((sums, after)));
        }
    }
    mesh.mailbox.wake();
}
