//! Communicators: of two ranks for one direction, made at the first message, and of sets of ranks.
//!
//! Guarantees: joining never closes a cycle of waiting ranks, whatever else is in flight.
//!
//! 1. The higher of two ranks begins, before its first launch on the lane: it waits until nothing that it has
//!    launched is in flight, makes an id, sends it to the lower rank, and joins. The lower rank joins when it reads
//!    the id.
//! 2. Both exchange a few bytes at once: NCCL connects two ranks at their first transfer, which needs both.
//!
//! A rank that waits in step 1 needs only lower ranks. While it joins, calls that wait for its whole GPU end at once,
//! and those of the lower rank need only still lower ranks (`host/turns.rs`). By induction, every join ends.

use super::command::Answer;
use super::communicator::{self, Communicator, Id, Way};
use super::error::{NcclError, PeerError, stop_reason, with};
use super::gpu::Event;
use super::progress::{Progress, SHORT_PAUSE};
use super::queue::Queue;
use crate::host::turns::{Lane, Note};
use burn_pipeline::link::LinkError;
use std::time::Instant;

/// The name of the first transfers, for errors.
const FIRST: &str = "a first transfer with another rank";

impl Progress {
    /// Makes a lane's queue at its first message, as the higher rank. The lower rank has it already.
    pub(super) fn connect(&mut self, lane: Lane) -> Result<(), PeerError> {
        let (peer, sends) = match lane {
            Lane::To(peer) => (peer, true),
            Lane::From(peer) => (peer, false),
            Lane::Set(_) => return Ok(()),
        };
        if self.queues.contains_key(&lane) || peer > self.mesh.mailbox.rank {
            return Ok(());
        }
        while !self.queues.values().all(|queue| queue.flights.is_empty()) {
            self.poll()?;
            if let Some(reason) = stop_reason(&self.mesh) {
                return Err(with(peer)(NcclError::Stopped { what: FIRST, reason }));
            }
            std::thread::sleep(SHORT_PAUSE);
        }
        let id = communicator::new_id().map_err(with(peer))?;
        self.mesh.note(peer, Note::Connect { sends, id: id.to_vec() }.write());
        self.join(lane, &id, 1).map_err(with(peer))
    }

    /// Makes a lane's queue, as the lower rank. Returns false if no rank asks for that now.
    pub(super) fn connected(&mut self, from: usize, sends: bool, id: Vec<u8>) -> Result<bool, NcclError> {
        let lane = if sends { Lane::From(from) } else { Lane::To(from) };
        let id = Id::try_from(id).ok().filter(|_| from > self.mesh.mailbox.rank && !self.queues.contains_key(&lane));
        id.map(|id| self.join(lane, &id, 0)).transpose().map(|joined| joined.is_some())
    }

    /// Joins the communicator of two ranks as the rank `place`.
    fn join(&mut self, lane: Lane, id: &Id, place: usize) -> Result<(), NcclError> {
        let (deadline, mesh) = (Instant::now() + self.timeout.get(), self.mesh.clone());
        let stop = || stop_reason(&mesh);
        let queue = self.queue(Communicator::join(id, place, 2, deadline, &stop)?)?;
        // Whatever fails below, `give_up` empties this queue before it frees memory.
        let queue = &*self.queues.entry(lane).or_insert(queue);
        let other = 1 - place;
        let way = if matches!(lane, Lane::To(_)) { Way::To(other) } else { Way::From(other) };
        let event = Event::new(&self.order.gpu)?;
        // SAFETY: nothing else uses this memory until the event has completed, and it is kept until the queue is empty.
        unsafe { queue.communicator.exchange(&queue.stream, &[(way, self.greeting.area())]) }?;
        queue.communicator.settle(FIRST, deadline, &stop)?;
        event.record(&queue.stream)?;
        queue.communicator.settle_until(FIRST, deadline, &stop, || event.is_complete())
    }

    fn queue(&self, communicator: Communicator) -> Result<Queue, NcclError> {
        Queue::new(communicator, &self.order.gpu, self.high_priority)
    }

    /// Makes the communicators of sets by these splits, and answers. All ranks must call it.
    pub(super) fn form(
        &mut self,
        splits: Vec<(u32, Option<u16>)>,
        deadline: Instant,
        done: Answer<()>,
    ) -> Result<(), PeerError> {
        let rank = self.mesh.mailbox.rank;
        let formed = splits.into_iter().try_for_each(|(number, color)| self.split(number, color, deadline));
        let closed = |error: &NcclError| LinkError::Closed { rank, message: error.to_string() };
        // This fails if the caller has given up.
        let _ = done.send(formed.as_ref().map(|()| ((), None)).map_err(closed));
        self.mesh.mailbox.wake();
        formed.map_err(with(rank))
    }

    /// Makes a set's communicator, of the ranks with this colour.
    fn split(&mut self, number: u32, color: Option<u16>, deadline: Instant) -> Result<(), NcclError> {
        let stop = || stop_reason(&self.mesh);
        if let Some(communicator) = self.world.split(color, self.mesh.mailbox.rank, deadline, &stop)? {
            self.queues.insert(Lane::Set(number), self.queue(communicator)?);
        }
        Ok(())
    }
}
