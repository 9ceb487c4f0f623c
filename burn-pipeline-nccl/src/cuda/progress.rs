//! The thread that serves a link: the only thread that calls NCCL.
//!
//! 1. It executes commands: tensors to send, frames and notes of other ranks (`exchange.rs`), collectives
//!    (`collect.rs`). [`Turns`] decides what to launch when. Memory is allocated and pinned before the rank launches,
//!    or says that it is ready.
//! 2. A launch follows [`Ordering`](super::order::Ordering), enters the queue of its lane ([`Queue`]), and an event is
//!    recorded after it. The memory is kept even if the call fails: part of it may be in the queue (`flight.rs`).
//! 3. While launches are in flight, the thread polls the oldest event of each queue, NCCL's errors, the failures of
//!    other ranks, and the time. When an event has completed, and only then, the launch's memory is unpinned
//!    ([`Flights`](crate::host::flights::Flights)).
//! 4. A dropped link is served until nothing is left to send, to launch or in flight. Then its rank tells the others
//!    that it leaves, and serves until all have answered. If the timeout passes before that, this is an error. The rank
//!    waits for the thread's end a little longer than all that takes, even if a call of the driver never returns.
//! 5. On any error the communicators are aborted, and all ranks learn the peer with which it occurred.

use super::command::{Answer, Collect, Command};
use super::communicator::Communicator;
use super::error::{NcclError, PeerError, stop_reason, with};
use super::inbox::Slot;
use super::launch::{Announcement, Ready};
use super::order::{Counter, Order};
use super::queue::Queue;
use super::tensors::Pinned;
use crate::host::timeout::Timeout;
use crate::host::turns::{Action, Lane, Note, Turns};
use burn_cubecl::CubeDevice;
use burn_pipeline::link::kit::{Envelope, Mesh, Peers};
use burn_pipeline::link::{Failure, Monitor};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// The time between two polls while a launch is in flight.
pub(super) const SHORT_PAUSE: Duration = Duration::from_micros(30);
/// The time between two polls for failures of other ranks while nothing is in flight.
const LONG_PAUSE: Duration = Duration::from_millis(20);
/// The longest time for closing communicators.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The state of the thread.
pub(crate) struct Progress {
    /// The communicator of all ranks, from which those of sets are split.
    pub(crate) world: Communicator,
    pub(crate) queues: BTreeMap<Lane, Queue>,
    /// The memory of first transfers.
    pub(crate) greeting: Pinned,
    pub(crate) order: Order,
    pub(crate) high_priority: bool,
    /// Orders transfers after computing, if that is done on the device.
    pub(crate) counter: Option<Counter>,
    pub(crate) cube: CubeDevice,
    pub(crate) mesh: Arc<Mesh>,
    pub(crate) turns: Turns,
    pub(crate) timeout: Timeout,
    /// Messages to and from each rank that are not launched.
    pub(crate) outgoing: Vec<VecDeque<Vec<Pinned>>>,
    pub(crate) incoming: Vec<VecDeque<(Slot, Vec<Pinned>)>>,
    pub(crate) collects: Vec<(Collect, Vec<Option<Ready>>)>,
    /// The answer that is due when every message of this rank is launched.
    pub(crate) when_launched: Option<Answer<()>>,
}

impl Progress {
    /// Serves until the link is dropped, or something fails.
    pub(crate) fn run(mut self, commands: &Receiver<Command>) {
        match self.serve(commands) {
            Ok(()) => self.close(),
            Err(error) => self.give_up(error),
        }
    }

    /// Ends the communicators together with the other ranks.
    fn close(self) {
        let deadline = Instant::now() + CLOSE_TIMEOUT;
        let stop = || stop_reason(&self.mesh);
        let parts = self.queues.into_values().map(|Queue { communicator, stream, .. }| (communicator, stream));
        let (communicators, _streams): (Vec<_>, Vec<_>) = parts.unzip();
        // All begin to end before one is awaited: other ranks may end theirs in another order.
        let ending: Vec<_> = communicators.into_iter().filter(Communicator::finalize).collect();
        ending.into_iter().for_each(|communicator| communicator.close(deadline, &stop));
        if self.world.finalize() {
            self.world.close(deadline, &stop);
        }
    }

    /// Tells all ranks, aborts the communicators, and leaks memory to which the GPU may still write.
    fn give_up(self, error: Option<PeerError>) {
        if let Some(PeerError { peer, error }) = error {
            let rank = self.mesh.mailbox.rank;
            self.mesh.abort(Failure { rank: peer, message: format!("between ranks {rank} and {peer}: {error}") });
        }
        // Dropping a communicator aborts it: first those of lanes, then the one from which sets were split.
        let parts = |queue: Queue| (queue.communicator, (queue.stream, queue.flights));
        let (communicators, queues): (Vec<_>, Vec<_>) = self.queues.into_values().map(parts).unzip();
        drop(communicators);
        drop(self.world);
        let (deadline, mut answers) = (Instant::now() + CLOSE_TIMEOUT, true);
        for (stream, mut flights) in queues {
            while !stream.is_empty() && Instant::now() < deadline {
                std::thread::sleep(SHORT_PAUSE);
            }
            // If the GPU does not answer, launches in flight are leaked.
            if stream.is_empty() { flights.release() } else { answers = false }
        }
        if !answers {
            std::mem::forget((self.greeting, self.counter));
        }
    }

    /// Returns `Err(None)` if another rank's failure is already known.
    fn serve(&mut self, commands: &Receiver<Command>) -> Result<(), Option<PeerError>> {
        let mut closing = None;
        loop {
            let pause = if self.in_flight().next().is_none() { LONG_PAUSE } else { SHORT_PAUSE };
            match commands.recv_timeout(pause) {
                end @ (Ok(Command::Close) | Err(RecvTimeoutError::Disconnected)) => {
                    closing.get_or_insert_with(|| Instant::now() + self.timeout.get());
                    if end.is_err() {
                        // Without senders, the call above does not wait.
                        std::thread::sleep(pause);
                    }
                }
                Ok(command) => self.execute(command).map_err(Some)?,
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.poll().map_err(Some)?;
            // A rank that leaves after a failure would hide the failure.
            if self.mesh.failure().is_some() {
                return Err(None);
            }
            if self.outgoing.iter().all(VecDeque::is_empty)
                && let Some(done) = self.when_launched.take()
            {
                // This fails if the caller has given up.
                let _ = done.send(Ok(((), None)));
                self.mesh.mailbox.wake();
            }
            if closing.is_some() && self.turns.unanswered().is_none() && self.is_idle() {
                for action in self.turns.leave() {
                    self.act(action).map_err(Some)?;
                }
            }
            if self.turns.unanswered().is_some_and(|ranks| ranks.is_empty()) && self.is_idle() {
                return Ok(());
            }
            if closing.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(self.unfinished());
            }
        }
    }

    /// The peers of launches in flight.
    fn in_flight(&self) -> impl Iterator<Item = usize> {
        self.queues.values().filter_map(|queue| queue.flights.oldest().map(|flight| flight.peer))
    }

    /// Returns true if nothing is left to send, to launch or in flight.
    fn is_idle(&self) -> bool {
        self.unfinished_peer().is_none()
    }

    /// A rank with which something is left to send, to launch or in flight.
    fn unfinished_peer(&self) -> Option<usize> {
        let outgoing = || self.outgoing.iter().position(|tensors| !tensors.is_empty());
        let collects = || self.collects.first().map(|(collect, _)| self.other(&collect.members));
        self.in_flight().next().or_else(outgoing).or_else(collects)
    }

    /// The error of a dropped link that could not end in time.
    fn unfinished(&self) -> Option<PeerError> {
        let unanswered = || self.turns.unanswered().and_then(|ranks| ranks.first().copied());
        let peer = self.unfinished_peer().or_else(unanswered)?;
        Some(with(peer)(NcclError::Timeout { what: "what was left to transfer when the link was dropped" }))
    }

    fn execute(&mut self, command: Command) -> Result<(), PeerError> {
        let actions = match command {
            Command::Send { to, frame, tensors } => return self.send(to, frame, tensors),
            Command::SendBytes { to, packed } => {
                // A lost connection is noticed elsewhere.
                let _ = self.mesh.send(to, Envelope::Message(packed.frame), packed.bodies);
                Vec::new()
            }
            Command::Arrived { from, frame, slot } => self.arrived(from, &frame, slot).map_err(with(from))?,
            Command::Note { from, note } => self.note(from, &note).map_err(with(from))?,
            Command::WhenLaunched { done } => {
                self.when_launched = Some(done);
                Vec::new()
            }
            Command::Form { splits, deadline, done } => return self.form(splits, deadline, done),
            Command::Collect(collect) => self.ready_for(collect)?,
            Command::Close => Vec::new(),
        };
        actions.into_iter().try_for_each(|action| self.act(action))
    }

    pub(super) fn act(&mut self, action: Action) -> Result<(), PeerError> {
        match action {
            Action::Send(to, note) => self.mesh.note(to, note.write()),
            Action::Launch(lane, note) => self.exchange(lane, note.map(Announcement::from))?,
            Action::Collective { group, round, parts, next } => {
                self.start((group, round), &parts, next.map(Announcement::from))?
            }
            Action::End { group, round, parts } => self.end(group, round, &parts),
            Action::Whole(lane) => self.whole(lane),
        }
        Ok(())
    }

    /// The actions that follow a rank's note.
    fn note(&mut self, from: usize, note: &[u8]) -> Result<Vec<Action>, NcclError> {
        let stopped = |reason| NcclError::Stopped { what: "taking turns", reason };
        let unknown = || format!("rank {from} sent a note that no rank sends; build all ranks from one version");
        let note = Note::read(note).ok_or_else(|| stopped(unknown()))?;
        if let Note::Connect { sends, id } = note {
            return if self.connected(from, sends, id)? { Ok(Vec::new()) } else { Err(stopped(unknown())) };
        }
        let left = matches!(note, Note::Leave { .. });
        let actions = self.turns.receive(from, note).map_err(stopped)?;
        if left {
            self.forget(from);
        }
        Ok(actions)
    }

    /// Drops what is not launched with a rank that leaves. Waits for that rank end now, not when its communicators
    /// are closed.
    fn forget(&mut self, left: usize) {
        self.outgoing[left].clear();
        let ends = |(collect, _): &mut (Collect, _)| {
            collect.members.contains(&left) && !self.turns.awaits(collect.group, collect.round)
        };
        let ended: Vec<_> = self.collects.extract_if(.., ends).collect();
        ended.iter().for_each(|(collect, _)| self.end_without(collect, left));
        self.mesh.mailbox.handle(left, Envelope::Close);
    }
}
