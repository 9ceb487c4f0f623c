//! The thread that serves a link: the only one that calls NCCL.
//!
//! 1. It executes commands: tensors to send, offers and notes of other ranks, collectives. What is received lands in memory
//!    that is made, and pinned, when the offer comes, or the rank says that it is ready: CubeCL may compile kernels
//!    meanwhile, and no other rank has launched anything then. [`Pairing`] decides what to launch next.
//! 2. A launch keeps [`Ordering`](super::order::Ordering), queues one NCCL group, and records an event behind
//!    it. The memory is kept even if a call of the group fails: other calls of it may be in the queue.
//! 3. While launches are in flight, the thread polls the oldest one's event, NCCL's errors, the failures of other ranks, and
//!    the time. When the event has completed, the launch's memory is unpinned, and at no other time ([`Flights`]).
//! 4. On any error the communicators are aborted, and all ranks get the peer with which it occurred.

use super::command::{Answer, Collect, Command};
use super::communicator::{Communicator, Way};
use super::error::NcclError;
use super::gpu::{Event, Stream};
use super::inbox::{Content, Slot};
use super::order::Order;
use super::tensors::{Held, Pinned, empty};
use crate::host::ending::{self, Next};
use crate::host::flights::Flights;
use crate::host::pairing::{Action, Note, Pairing};
use crate::host::sums;
use crate::host::timeout::Timeout;
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;
use burn_pipeline::link::kit::{Frame, Mesh};
use burn_pipeline::link::{Failure, LinkError, Monitor};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// The time between two polls while a launch is in flight.
const SHORT_PAUSE: Duration = Duration::from_micros(30);
/// The time between two polls for failures of other ranks while none is.
const LONG_PAUSE: Duration = Duration::from_millis(20);
/// The longest that the end of a communicator may take.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The state of the thread.
pub(crate) struct Progress {
    pub(crate) world: Communicator,
    pub(crate) stream: Stream,
    pub(crate) order: Order,
    pub(crate) cube: CubeDevice,
    pub(crate) mesh: Arc<Mesh>,
    pub(crate) pairing: Pairing,
    pub(crate) timeout: Timeout,
    /// Tensors that were offered to each rank, and where those land that each rank has offered.
    pub(crate) outgoing: Vec<VecDeque<Vec<Pinned>>>,
    pub(crate) incoming: Vec<VecDeque<(Slot, Vec<Pinned>)>>,
    pub(crate) groups: Vec<Option<Communicator>>,
    pub(crate) collects: Vec<(Collect, Vec<Option<Ready>>)>,
    pub(crate) flights: Flights<Flight>,
}

/// The memory that a collective reads, and that it writes.
pub(crate) struct Ready {
    pub(super) from: Pinned,
    pub(super) to: Pinned,
}

/// A launch that may not have completed.
pub(crate) struct Flight {
    event: Arc<Event>,
    /// A rank that takes part, for errors.
    peer: usize,
    since: Instant,
    /// Memory that the launch reads.
    #[expect(dead_code, reason = "it is held until the launch has completed, and not looked at")]
    held: Vec<Pinned>,
    /// Memory of tensors that were given out before the launch had completed.
    pins: Vec<Held>,
    landing: Landing,
}

/// Where received tensors go.
pub(super) enum Landing {
    Nowhere,
    Slots(Vec<(Slot, Vec<Pinned>)>),
    Sums(Vec<Option<Pinned>>, Answer<Vec<Option<CubeTensor>>>),
}

/// An error, and the rank with which it occurred.
struct PeerError {
    peer: usize,
    error: NcclError,
}

impl Progress {
    /// Serves until the link is dropped, or something fails.
    pub(crate) fn run(mut self, commands: &Receiver<Command>) {
        match self.serve(commands) {
            Ok(()) => {
                let deadline = Instant::now() + CLOSE_TIMEOUT;
                self.groups.drain(..).flatten().for_each(|group| group.close(deadline));
                self.world.close(deadline);
            }
            Err(error) => self.give_up(error),
        }
    }

    /// Informs all ranks, aborts the communicators, and leaks memory to which the GPU may still write.
    fn give_up(mut self, error: Option<PeerError>) {
        if let Some(PeerError { peer, error }) = error {
            let rank = self.mesh.mailbox.rank;
            self.mesh.abort(Failure { rank: peer, message: format!("between ranks {rank} and {peer}: {error}") });
        }
        // Dropping a communicator aborts it: first the groups, then the communicator from which they were split.
        drop(self.groups);
        drop(self.world);
        let deadline = Instant::now() + CLOSE_TIMEOUT;
        while !self.stream.is_empty() {
            if Instant::now() >= deadline {
                // The GPU does not answer: what is in flight is leaked.
                return;
            }
            std::thread::sleep(SHORT_PAUSE);
        }
        self.flights.release();
    }

    /// `Err(None)` if another rank's failure is known already.
    fn serve(&mut self, commands: &Receiver<Command>) -> Result<(), Option<PeerError>> {
        let mut closing = None;
        loop {
            let pause = if self.flights.is_empty() { LONG_PAUSE } else { SHORT_PAUSE };
            match commands.recv_timeout(pause) {
                Ok(Command::Close) | Err(RecvTimeoutError::Disconnected) => {
                    closing.get_or_insert_with(|| Instant::now() + self.timeout.get());
                }
                Ok(command) => self.execute(command).map_err(Some)?,
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.poll().map_err(Some)?;
            let done = self.flights.is_empty() && self.outgoing.iter().all(VecDeque::is_empty);
            match ending::closing(closing, done, Instant::now()) {
                Next::Close => return Ok(()),
                Next::GiveUp => return Err(None),
                Next::Serve if self.mesh.failure().is_some() => return Err(None),
                Next::Serve => {}
            }
        }
    }

    fn execute(&mut self, command: Command) -> Result<(), PeerError> {
        let me = self.mesh.mailbox.rank;
        let actions = match command {
            Command::Send { to, frame, tensors, own } => {
                let pinned = tensors.into_iter().map(Pinned::new).collect::<Result<Vec<_>, _>>().map_err(with(to))?;
                self.order.before_offer().map_err(with(to))?;
                self.outgoing[to].push_back(pinned);
                match own {
                    Some((frame, slot)) => self.land(me, &frame, slot).map_err(with(to))?,
                    None => self.mesh.offer(to, frame),
                }
                self.pairing.offer(to)
            }
            Command::Offered { from, frame, slot } => {
                self.land(from, &frame, slot).map_err(with(from))?;
                self.pairing.offered(from)
            }
            Command::Note { from, note } => {
                let note = Note::read(&note).ok_or(NcclError::Stopped {
                    what: "agreeing on the order of transfers",
                    reason: format!("rank {from} sent a note that no rank sends; build all ranks from one version"),
                });
                let received = self.pairing.receive(from, note.map_err(with(from))?);
                let stopped = |reason| NcclError::Stopped { what: "agreeing on the order of transfers", reason };
                received.map_err(stopped).map_err(with(from))?
            }
            Command::FormGroups { groups, deadline, done } => {
                let formed = self.form(&groups, deadline);
                // It fails if the caller has given up.
                let _ = done.send(formed.as_ref().map(|()| ((), None)).map_err(|error| self.closed(error)));
                self.mesh.mailbox.wake();
                formed.map_err(with(me))?;
                Vec::new()
            }
            Command::Collect(collect) => {
                let spec = |tensor: &Option<CubeTensor>| {
                    tensor.as_ref().map(|tensor| (tensor.dtype, tensor.meta.shape().to_vec()))
                };
                let specs: Vec<_> = collect.tensors.iter().map(spec).collect();
                let part = sums::write(&specs);
                let (group, round, members) = (collect.group, collect.round, collect.members.clone());
                let peer = members.iter().copied().find(|&member| member != me).unwrap_or(me);
                let ready = self.make_ready(&collect.tensors).map_err(with(peer))?;
                self.collects.push((collect, ready));
                self.pairing.ready(group, round, &members, part)
            }
            Command::Close => Vec::new(),
        };
        actions.into_iter().try_for_each(|action| self.act(action))
    }

    fn act(&mut self, action: Action) -> Result<(), PeerError> {
        match action {
            Action::Send(to, note) => {
                self.mesh.note(to, note.write());
                Ok(())
            }
            Action::Exchange { peer, sends, receives } => self.exchange(peer, sends, receives).map_err(with(peer)),
            Action::Collective { group, round, parts } => {
                let place = self.collects.iter().position(|(c, _)| (c.group, c.round) == (group, round));
                let Some(place) = place else { return Ok(()) };
                let (collect, ready) = self.collects.remove(place);
                let me = self.mesh.mailbox.rank;
                let peer = collect.members.iter().copied().find(|&member| member != me).unwrap_or(me);
                match sums::joined(&parts) {
                    Ok(specs) => self.collect(collect, ready, specs, peer).map_err(with(peer)),
                    Err(reason) => {
                        // All members get this error, and none launches.
                        let _ = collect.done.send(Err(LinkError::Lists { rank: me, peer, reason }));
                        self.mesh.mailbox.wake();
                        Ok(())
                    }
                }
            }
        }
    }

    /// Makes the memory for what a rank offers.
    fn land(&mut self, from: usize, frame: &Frame, slot: Slot) -> Result<(), NcclError> {
        let land = |(dtype, shape)| Pinned::new(empty(&self.cube, dtype, shape));
        let landings = frame.tensors().map(land).collect::<Result<Vec<_>, _>>()?;
        // Kernels that were queued before may still use that memory.
        self.order.before_offer()?;
        self.incoming[from].push_back((slot, landings));
        Ok(())
    }

    /// Launches the transfers to a rank and from it, as one group.
    fn exchange(&mut self, peer: usize, sends: usize, receives: usize) -> Result<(), NcclError> {
        let mut transfers: Vec<(Way, Pinned)> = Vec::new();
        for tensors in self.outgoing[peer].drain(..sends) {
            transfers.extend(tensors.into_iter().map(|pinned| (Way::To(peer), pinned)));
        }
        let mut slots = Vec::new();
        for (slot, landings) in self.incoming[peer].drain(..receives) {
            slots.push((slot, landings.len()));
            transfers.extend(landings.into_iter().map(|pinned| (Way::From(peer), pinned)));
        }
        self.order.before_group(&self.stream)?;
        let event = Event::new(&self.order.gpu)?;
        let queued = self.world.exchange(&self.stream, &transfers).and_then(|()| self.settle(false));
        let (held, landed): (Vec<_>, Vec<_>) = transfers.into_iter().partition(|(way, _)| matches!(way, Way::To(_)));
        let mut landed = landed.into_iter().map(|(_, pinned)| pinned);
        let slots = slots.into_iter().map(|(slot, count)| (slot, landed.by_ref().take(count).collect())).collect();
        let held = held.into_iter().map(|(_, pinned)| pinned).collect();
        self.fly(queued, event, peer, held, Landing::Slots(slots))
    }

    /// Records an event behind the launch, and keeps the memory that it uses, even if queuing it has failed.
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

    /// Gives received tensors out. Their memory stays pinned until the launch has completed.
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
                // It fails if the caller has given up.
                let _ = done.send(Ok((sums, after)));
            }
        }
        self.mesh.mailbox.wake();
    }

    /// Removes launches that have completed, and looks for errors.
    fn poll(&mut self) -> Result<(), PeerError> {
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

    /// Fails if NCCL has found an error.
    fn check(&self) -> Result<(), NcclError> {
        let mut all = std::iter::once(&self.world).chain(self.groups.iter().flatten());
        all.try_for_each(|communicator| communicator.is_settled("a group of transfers").map(drop))
    }

    /// Waits until the group is really in the queue: only then can an event be recorded behind it.
    pub(super) fn settle(&self, groups: bool) -> Result<(), NcclError> {
        let (what, deadline) = ("queuing a group of transfers", Instant::now() + self.timeout.get());
        let stop = || self.mesh.failure().map(|failure| failure.message);
        let parts = self.groups.iter().flatten().filter(|_| groups);
        std::iter::once(&self.world).chain(parts).try_for_each(|part| part.settle(what, deadline, &stop))
    }

    fn form(&mut self, groups: &[Vec<usize>], deadline: Instant) -> Result<(), NcclError> {
        let me = self.mesh.mailbox.rank;
        let stop = || self.mesh.failure().map(|failure| failure.message);
        let mut formed = Vec::new();
        for group in groups {
            let color = group.contains(&me).then_some(0);
            formed.push(self.world.split(color, me, deadline, &stop)?);
        }
        self.groups = formed;
        Ok(())
    }

    fn closed(&self, error: &NcclError) -> LinkError {
        LinkError::Closed { rank: self.mesh.mailbox.rank, message: error.to_string() }
    }
}

fn with(peer: usize) -> impl Fn(NcclError) -> PeerError {
    move |error| PeerError { peer, error }
}
