//! Launches in flight, whose event has not completed.
//!
//! Guarantees: the memory of a launch is kept until the event after it has completed, whatever fails; no launch is
//! in flight longer than the pipeline's timeout without an error.

use super::error::{NcclError, PeerError, with};
use super::gpu::Event;
use super::inbox::Content;
use super::launch::{Flight, Landing};
use super::progress::Progress;
use super::tensors::Pinned;
use burn_pipeline::link::Monitor;
use std::sync::Arc;
use std::time::Instant;

impl Progress {
    /// Records an event after the launch, and keeps the memory that it uses, even if queuing it has failed.
    pub(super) fn fly(
        &mut self,
        queued: Result<(), NcclError>,
        event: Event,
        peer: usize,
        held: Vec<Pinned>,
        landing: Landing,
    ) -> Result<(), NcclError> {
        let recorded = queued.and_then(|()| event.record(&self.stream));
        let (event, since, pins) = (Arc::new(event), Instant::now(), Vec::new());
        let mut flight = Flight { event, peer, since, held, pins, landing };
        if recorded.is_ok() && self.order.gives_out_early() {
            self.give_out(&mut flight, true);
        }
        self.flights.push(flight);
        recorded
    }

    /// Releases received tensors to their receiver. Their memory stays pinned until the launch has completed.
    fn give_out(&self, flight: &mut Flight, early: bool) {
        let after = early.then(|| flight.event.clone());
        let mut release = |pinned: Pinned| {
            let (tensor, pin) = pinned.into_parts();
            flight.pins.push(pin);
            tensor
        };
        match std::mem::replace(&mut flight.landing, Landing::Nowhere) {
            Landing::Nowhere => return,
            Landing::Slots(slots) => {
                for (slot, landed) in slots {
                    slot.fill(Content::Device(landed.into_iter().map(&mut release).collect(), after.clone()));
                }
            }
            Landing::Sums(sums, done) => {
                let sums = sums.into_iter().map(|sum| sum.map(&mut release)).collect();
                // This fails if the caller has given up.
                let _ = done.send(Ok((sums, after)));
            }
        }
        self.mesh.mailbox.wake();
    }

    /// Removes completed launches, and checks for errors.
    pub(super) fn poll(&mut self) -> Result<(), PeerError> {
        while let Some(flight) = self.flights.oldest() {
            let peer = flight.peer;
            let over = flight.event.is_complete().map_err(with(peer))?;
            if !over {
                let late = flight.since.elapsed() > self.timeout.get();
                self.check().map_err(with(peer))?;
                return if late {
                    Err(with(peer)(NcclError::Timeout { what: "a group of transfers" }))
                } else {
                    Ok(())
                };
            }
            if let Some(mut flight) = self.flights.completed() {
                self.give_out(&mut flight, false);
            }
        }
        Ok(())
    }

    /// Returns an error if NCCL has found one.
    fn check(&self) -> Result<(), NcclError> {
        let mut all = std::iter::once(&self.world).chain(self.groups.iter().flatten()).chain(&self.own);
        all.try_for_each(|communicator| communicator.is_settled("a group of transfers").map(drop))
    }

    /// Waits until the group is really in the queue: only then can an event be recorded after it.
    pub(super) fn settle(&self, groups: bool) -> Result<(), NcclError> {
        let (what, deadline) = ("queuing a group of transfers", Instant::now() + self.timeout.get());
        let stop = || self.mesh.failure().map(|failure| failure.message);
        let parts = self.groups.iter().flatten().chain(&self.own).filter(|_| groups);
        std::iter::once(&self.world).chain(parts).try_for_each(|part| part.settle(what, deadline, &stop))
    }
}
