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
use super::error::{NcclError, PeerError, with};
use super::gpu::Event;
use super::progress::{Progress, SHORT_PAUSE};
use super::queue::Queue;
use crate::host::turns::{Lane, Note};
use burn_pipeline::link::{LinkError, Monitor};
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
            if let Some(reason) = self.stopped() {
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
        let stop = || mesh.failure().map(|failure| failure.message);
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
        while !event.is_complete()? {
            queue.communicator.settle(FIRST, deadline, &stop)?;
            if let Some(reason) = stop() {
                return Err(NcclError::Stopped { what: FIRST, reason });
            }
            if Instant::now() >= deadline {
                return Err(NcclError::Timeout { what: FIRST });
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    fn queue(&self, communicator: Communicator) -> Result<Queue, NcclError> {
        Queue::new(communicator, &self.order.gpu, self.high_priority)
    }

    /// Makes the communicators of groups, in this order. All ranks must call it.
    pub(super) fn form_sets(
        &mut self,
        sets: &[Vec<usize>],
        deadline: Instant,
        done: Answer<()>,
    ) -> Result<(), PeerError> {
        let me = self.mesh.mailbox.rank;
        let color = |group: &Vec<usize>| group.contains(&me).then_some(0);
        let mut numbered = (0..).zip(sets);
        let formed = numbered.try_for_each(|(number, group)| self.form(number, color(group), deadline));
        self.formed(formed, done)
    }

    /// Makes a set's communicator, of the ranks with this colour.
    pub(super) fn form(&mut self, number: u32, color: Option<u16>, deadline: Instant) -> Result<(), NcclError> {
        let stop = || self.stopped();
        if let Some(communicator) = self.world.split(color, self.mesh.mailbox.rank, deadline, &stop)? {
            self.queues.insert(Lane::Set(number), self.queue(communicator)?);
        }
        Ok(())
    }

    /// Answers that communicators were made, or why not.
    pub(super) fn formed(&self, formed: Result<(), NcclError>, done: Answer<()>) -> Result<(), PeerError> {
        let rank = self.mesh.mailbox.rank;
        let closed = |error: &NcclError| LinkError::Closed { rank, message: error.to_string() };
        // This fails if the caller has given up.
        let _ = done.send(formed.as_ref().map(|()| ((), None)).map_err(closed));
        self.mesh.mailbox.wake();
        formed.map_err(with(rank))
    }

    /// Why waits must end, if another rank has failed.
    pub(super) fn stopped(&self) -> Option<String> {
        self.mesh.failure().map(|failure| failure.message)
    }
}
