//! The thread that serves a link: the only thread that calls NCCL.
//!
//! 1. It executes commands: tensors to send, other ranks' offers and notes (`exchange.rs`), collectives
//!    (`collect.rs`). Memory for received tensors is allocated and pinned when the offer comes, or before the rank
//!    declares that it is ready: CubeCL may compile kernels meanwhile, and no other rank has launched anything
//!    then. [`Pairing`] decides what to launch next.
//! 2. A launch follows [`Ordering`](super::order::Ordering), queues one NCCL group, and records an event after it.
//!    The memory is kept even if a call of the group fails: its other calls may be in the queue.
//! 3. While launches are in flight, the thread polls the oldest one's event, NCCL's errors, the failures of other
//!    ranks, and the time (`flight.rs`). When the event has completed, and only then, the launch's memory is
//!    unpinned ([`Flights`]).
//! 4. A dropped link is served until nothing is left to send, in flight, or agreed on. Then its rank leaves: it
//!    tells the others, which launch nothing more with it.
//! 5. On any error the communicators are aborted, and all ranks learn the peer with which it occurred.

use super::command::{Answer, Collect, Command};
use super::communicator::Communicator;
use super::error::{NcclError, PeerError, with};
use super::gpu::Stream;
use super::inbox::Slot;
use super::launch::{Flight, Ready};
use super::order::Order;
use super::tensors::Pinned;
use crate::host::ending::{self, Next};
use crate::host::flights::Flights;
use crate::host::pairing::{Action, Note, Pairing};
use crate::host::timeout::Timeout;
use burn_cubecl::CubeDevice;
use burn_pipeline::link::kit::{Envelope, Mesh, Peers};
use burn_pipeline::link::{Failure, LinkError, Monitor};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// The time between two polls while a launch is in flight.
const SHORT_PAUSE: Duration = Duration::from_micros(30);
/// The time between two polls for failures of other ranks while nothing is in flight.
const LONG_PAUSE: Duration = Duration::from_millis(20);
/// The longest time for closing communicators.
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
    /// Tensors that were offered to each rank, and the memory for tensors that each rank has offered.
    pub(crate) outgoing: Vec<VecDeque<Vec<Pinned>>>,
    pub(crate) incoming: Vec<VecDeque<(Slot, Vec<Pinned>)>>,
    pub(crate) groups: Vec<Option<Communicator>>,
    /// The communicator of this rank's tensor-parallel group.
    pub(crate) own: Option<Communicator>,
    pub(crate) collects: Vec<(Collect, Vec<Option<Ready>>)>,
    pub(crate) flights: Flights<Flight>,
}

impl Progress {
    /// Serves until the link is dropped, or something fails.
    pub(crate) fn run(mut self, commands: &Receiver<Command>) {
        match self.serve(commands) {
            Ok(()) => {
                let deadline = Instant::now() + CLOSE_TIMEOUT;
                let stop = || self.mesh.failure().map(|failure| failure.message);
                self.groups.into_iter().flatten().chain(self.own).for_each(|group| group.close(deadline, &stop));
                self.world.close(deadline, &stop);
            }
            Err(error) => self.give_up(error),
        }
    }

    /// Tells all ranks, aborts the communicators, and leaks memory to which the GPU may still write.
    fn give_up(mut self, error: Option<PeerError>) {
        if let Some(PeerError { peer, error }) = error {
            let rank = self.mesh.mailbox.rank;
            self.mesh.abort(Failure { rank: peer, message: format!("between ranks {rank} and {peer}: {error}") });
        }
        // Dropping a communicator aborts it: first the groups, then the communicator from which they were split.
        drop((self.groups, self.own));
        drop(self.world);
        let deadline = Instant::now() + CLOSE_TIMEOUT;
        while !self.stream.is_empty() {
            if Instant::now() >= deadline {
                // The GPU does not answer, so the launches in flight are leaked.
                return;
            }
            std::thread::sleep(SHORT_PAUSE);
        }
        self.flights.release();
    }

    /// Returns `Err(None)` if another rank's failure is already known.
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
            match ending::closing(closing, self.is_idle(), Instant::now()) {
                _ if self.mesh.failure().is_some() => return Err(None),
                Next::Close => return self.leave().map_err(Some),
                Next::GiveUp => return Err(self.unfinished()),
                Next::Serve => {}
            }
        }
    }

    /// Returns true if nothing is left to send, in the queue, or agreed on with another rank.
    fn is_idle(&self) -> bool {
        self.flights.is_empty() && self.outgoing.iter().all(VecDeque::is_empty) && self.pairing.is_free()
    }

    fn leave(&mut self) -> Result<(), PeerError> {
        self.pairing.leave().into_iter().try_for_each(|action| self.act(action))
    }

    /// The error of a dropped link that could not end in time.
    fn unfinished(&self) -> Option<PeerError> {
        let outgoing = || self.outgoing.iter().position(|tensors| !tensors.is_empty());
        let incoming = || self.incoming.iter().position(|tensors| !tensors.is_empty());
        let peer = self.flights.oldest().map(|flight| flight.peer).or_else(outgoing).or_else(incoming)?;
        Some(with(peer)(NcclError::Timeout { what: "what was left to transfer when the link was dropped" }))
    }

    fn execute(&mut self, command: Command) -> Result<(), PeerError> {
        let me = self.mesh.mailbox.rank;
        let actions = match command {
            // The receiver is gone.
            Command::Send { to, .. } if self.pairing.has_left(to) => Vec::new(),
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
            Command::SendBytes { to, packed } => {
                // A lost connection is noticed elsewhere.
                let _ = self.mesh.send(to, Envelope::Message(packed.frame), packed.bodies);
                Vec::new()
            }
            Command::Offered { from, frame, slot } => {
                self.land(from, &frame, slot).map_err(with(from))?;
                self.pairing.offered(from)
            }
            Command::Note { from, note } => self.note(from, &note).map_err(with(from))?,
            Command::FormSets { sets, deadline, done } => {
                let formed: Result<Vec<_>, _> =
                    sets.iter().map(|group| self.form(group.contains(&me).then_some(0), deadline)).collect();
                self.groups = self.formed(formed, done)?;
                Vec::new()
            }
            Command::FormOwn { color, deadline, done } => {
                let formed = self.form(color, deadline);
                self.own = self.formed(formed, done)?;
                Vec::new()
            }
            Command::Collect(collect) => self.ready_for(collect)?,
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
            Action::Collective { group, round, parts } => self.start(group, round, &parts),
        }
    }

    /// The actions that follow a rank's note.
    fn note(&mut self, from: usize, note: &[u8]) -> Result<Vec<Action>, NcclError> {
        let stopped = |reason| NcclError::Stopped { what: "agreeing on the order of transfers", reason };
        let unknown = || format!("rank {from} sent a note that no rank sends; build all ranks from one version");
        let note = Note::read(note).ok_or_else(|| stopped(unknown()))?;
        let actions = self.pairing.receive(from, note).map_err(stopped)?;
        if self.pairing.has_left(from) {
            self.forget(from);
        }
        Ok(actions)
    }

    /// Drops transfers with a rank that has left; none of them is in the queue. Waits for the rank end now, not
    /// when its communicators are closed.
    fn forget(&mut self, left: usize) {
        self.outgoing[left].clear();
        self.incoming[left].clear();
        let ends = |(collect, _): &mut (Collect, _)| {
            collect.members.contains(&left) && !self.pairing.awaits(collect.group, collect.round)
        };
        let ended: Vec<_> = self.collects.extract_if(.., ends).collect();
        ended.into_iter().for_each(|(collect, _)| self.end_without(collect, left));
        self.mesh.mailbox.handle(left, Envelope::Close);
    }

    /// Makes the communicator of the ranks with this colour.
    fn form(&self, color: Option<u16>, deadline: Instant) -> Result<Option<Communicator>, NcclError> {
        let stop = || self.mesh.failure().map(|failure| failure.message);
        self.world.split(color, self.mesh.mailbox.rank, deadline, &stop)
    }

    /// Answers that communicators were made, or why not.
    fn formed<T>(&self, formed: Result<T, NcclError>, done: Answer<()>) -> Result<T, PeerError> {
        // This fails if the caller has given up.
        let _ = done.send(formed.as_ref().map(|_| ((), None)).map_err(|error| self.closed(error)));
        self.mesh.mailbox.wake();
        formed.map_err(with(self.mesh.mailbox.rank))
    }

    fn closed(&self, error: &NcclError) -> LinkError {
        LinkError::Closed { rank: self.mesh.mailbox.rank, message: error.to_string() }
    }
}
