//! The thread that serves a link: the only one that calls NCCL.
//!
//! 1. It takes turns: tensors to send, offers and notes of other ranks, collectives. [`Pairing`] says what to launch.
//! 2. A launch pins memory, keeps [`Ordering`](crate::order::Ordering), queues one NCCL group, and puts an event behind it. From
//!    the first call on the memory is kept, whatever the calls say: after an error some of them may be on the queue.
//! 3. While launches are on their way it looks at the oldest one's event, at errors that NCCL found meanwhile, at the
//!    failures of other ranks, and at the clock. Memory is let go of when the event is over.
//! 4. On any error the communicators are aborted, and all ranks are told which peer it was with.

use crate::communicator::{Collective, Communicator, Way};
use crate::error::NcclError;
use crate::gpu::{Event, Stream};
use crate::order::Order;
use crate::pairing::{Deed, Note, Pairing};
use crate::sums;
use crate::tensors::{Held, Pinned, landing, zeros};
use crate::turn::{Answer, Collect, Content, Slot, Turn};
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;
use burn_pipeline::link::kit::{Frame, Mesh, Packet};
use burn_pipeline::link::{Failure, LinkError, Monitor};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Between two looks while something is on its way.
const SHORT_PAUSE: Duration = Duration::from_micros(30);
/// Between two looks for failures of others while nothing is.
const LONG_PAUSE: Duration = Duration::from_millis(20);
/// How long the end of a communicator may take.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// What the thread has.
pub(crate) struct Progress {
    pub(crate) world: Communicator,
    pub(crate) stream: Stream,
    pub(crate) order: Order,
    pub(crate) cube: CubeDevice,
    pub(crate) mesh: Arc<Mesh>,
    pub(crate) pairing: Pairing,
    pub(crate) timeout: Duration,
    /// Of each rank: what was offered to it, and what it has offered.
    pub(crate) outgoing: Vec<VecDeque<Vec<Pinned>>>,
    pub(crate) incoming: Vec<VecDeque<(Frame, Slot)>>,
    pub(crate) groups: Vec<Option<Communicator>>,
    pub(crate) collects: Vec<Collect>,
    pub(crate) flights: VecDeque<Flight>,
}

/// A launch that may not be over.
pub(crate) struct Flight {
    event: Arc<Event>,
    /// A rank that takes part, for the error.
    peer: usize,
    since: Instant,
    /// What is only let go of at the end.
    #[allow(dead_code, reason = "memory that must live as long as the flight")]
    held: Vec<Pinned>,
    /// The memory of what was handed out before the end.
    pins: Vec<Held>,
    landing: Landing,
}

/// Who gets what comes.
enum Landing {
    Nobody,
    Slots(Vec<(Slot, Vec<Pinned>)>),
    Sums(Vec<Option<Pinned>>, Answer<Vec<Option<CubeTensor>>>),
}

/// What failed, and with whom.
struct Trouble {
    peer: usize,
    error: NcclError,
}

impl Progress {
    /// Serves until the link is dropped, or something fails.
    pub(crate) fn run(mut self, turns: &Receiver<Turn>) {
        match self.serve(turns) {
            Ok(()) => {
                let deadline = Instant::now() + LAST_WORDS;
                self.groups.drain(..).flatten().for_each(|group| group.close(deadline));
                self.world.close(deadline);
            }
            Err(trouble) => self.give_up(trouble),
        }
    }

    /// Tells all ranks, wakes the queue, and leaves what may still be written to.
    fn give_up(self, trouble: Option<Trouble>) {
        if let Some(Trouble { peer, error }) = trouble {
            let rank = self.mesh.mailbox.rank;
            self.mesh.fail(Failure { rank: peer, message: format!("between ranks {rank} and {peer}: {error}") });
        }
        // Aborts all communicators: groups first, then the one that they came from.
        drop(self.groups);
        drop(self.world);
        let deadline = Instant::now() + LAST_WORDS;
        while !self.stream.is_empty() {
            if Instant::now() >= deadline {
                // The GPU did not come back: memory that it may still use is never given back.
                return std::mem::forget(self.flights);
            }
            std::thread::sleep(SHORT_PAUSE);
        }
    }

    /// `Err(None)` where another rank's failure is known already.
    fn serve(&mut self, turns: &Receiver<Turn>) -> Result<(), Option<Trouble>> {
        let mut closing = None;
        loop {
            let pause = if self.flights.is_empty() { LONG_PAUSE } else { SHORT_PAUSE };
            match turns.recv_timeout(pause) {
                Ok(Turn::Close) | Err(RecvTimeoutError::Disconnected) => {
                    closing.get_or_insert_with(|| Instant::now() + self.timeout);
                }
                Ok(turn) => self.take(turn).map_err(Some)?,
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.look().map_err(Some)?;
            let done = self.flights.is_empty() && self.outgoing.iter().all(VecDeque::is_empty);
            match closing {
                Some(deadline) if done || Instant::now() >= deadline => return Ok(()),
                _ if self.mesh.failure().is_some() => return Err(None),
                _ => {}
            }
        }
    }

    fn take(&mut self, turn: Turn) -> Result<(), Trouble> {
        let me = self.mesh.mailbox.rank;
        let deeds = match turn {
            Turn::Send { to, frame, tensors, own } => {
                let pinned = tensors.into_iter().map(Pinned::new).collect::<Result<Vec<_>, _>>().map_err(with(to))?;
                self.order.before_offer().map_err(with(to))?;
                self.outgoing[to].push_back(pinned);
                match own {
                    Some(own) => self.incoming[me].push_back(own),
                    None => self.mesh.send(to, Packet::Offer(frame)),
                }
                self.pairing.offer(to)
            }
            Turn::Offered { from, frame, slot } => {
                self.incoming[from].push_back((frame, slot));
                self.pairing.offered(from)
            }
            Turn::Note { from, note } => {
                let note = Note::read(&note).ok_or(NcclError::Stopped {
                    what: "agreeing on an order",
                    reason: format!("rank {from} sent what no rank sends; do all ranks run the same build?"),
                });
                let heard = self.pairing.hear(from, note.map_err(with(from))?);
                let stopped = |reason| NcclError::Stopped { what: "agreeing on an order", reason };
                heard.map_err(stopped).map_err(with(from))?
            }
            Turn::Form { groups, deadline, done } => {
                let formed = self.form(&groups, deadline);
                // Who asked may have given up.
                let _ = done.send(formed.as_ref().map(|()| ((), None)).map_err(|error| self.closed(error)));
                self.mesh.mailbox.wake();
                formed.map_err(with(me))?;
                Vec::new()
            }
            Turn::Collect(collect) => {
                let form = |tensor: &Option<CubeTensor>| {
                    tensor.as_ref().map(|tensor| (tensor.dtype, tensor.meta.shape().to_vec()))
                };
                let forms: Vec<_> = collect.tensors.iter().map(form).collect();
                let part = sums::write(&forms);
                let (group, round, members) = (collect.group, collect.round, collect.members.clone());
                self.collects.push(collect);
                self.pairing.ready(group, round, &members, part)
            }
            Turn::Close => Vec::new(),
        };
        deeds.into_iter().try_for_each(|deed| self.act(deed))
    }

    fn act(&mut self, deed: Deed) -> Result<(), Trouble> {
        match deed {
            Deed::Tell(to, note) => {
                self.mesh.send(to, Packet::Note(note.write()));
                Ok(())
            }
            Deed::Exchange { peer, sends, receives } => self.exchange(peer, sends, receives).map_err(with(peer)),
            Deed::Collective { group, round, parts } => {
                let place = self.collects.iter().position(|c| (c.group, c.round) == (group, round));
                let Some(place) = place else { return Ok(()) };
                let collect = self.collects.remove(place);
                let me = self.mesh.mailbox.rank;
                let peer = collect.members.iter().copied().find(|&member| member != me).unwrap_or(me);
                match sums::joined(&parts) {
                    Ok(forms) => self.collect(collect, forms, peer).map_err(with(peer)),
                    Err(reason) => {
                        // All members find the same, and none launches.
                        let _ = collect.done.send(Err(LinkError::Lists { rank: me, peer, reason }));
                        self.mesh.mailbox.wake();
                        Ok(())
                    }
                }
            }
        }
    }

    /// Launches what goes to a rank and what comes from it, as one group.
    fn exchange(&mut self, peer: usize, sends: usize, receives: usize) -> Result<(), NcclError> {
        let mut transfers: Vec<(Way, Pinned)> = Vec::new();
        for tensors in self.outgoing[peer].drain(..sends) {
            transfers.extend(tensors.into_iter().map(|pinned| (Way::To(peer), pinned)));
        }
        let mut slots = Vec::new();
        let offers: Vec<(Frame, Slot)> = self.incoming[peer].drain(..receives).collect();
        for (frame, slot) in offers {
            let land = |(dtype, shape)| Pinned::new(landing(&self.cube, dtype, shape));
            let landings = frame.tensors().map(land).collect::<Result<Vec<_>, _>>()?;
            slots.push((slot, landings.len()));
            transfers.extend(landings.into_iter().map(|pinned| (Way::From(peer), pinned)));
        }
        self.order.before_group(&self.stream, !slots.is_empty())?;
        let event = Event::new(&self.order.gpu)?;
        let queued = self.world.exchange(&self.stream, &transfers).and_then(|()| self.settle(false));
        let (held, landed): (Vec<_>, Vec<_>) = transfers.into_iter().partition(|(way, _)| matches!(way, Way::To(_)));
        let mut landed = landed.into_iter().map(|(_, pinned)| pinned);
        let slots = slots.into_iter().map(|(slot, count)| (slot, landed.by_ref().take(count).collect())).collect();
        let held = held.into_iter().map(|(_, pinned)| pinned).collect();
        self.fly(queued, event, peer, held, Landing::Slots(slots))
    }

    /// Launches a collective: what is read stays as it is, what is written is new.
    fn collect(&mut self, collect: Collect, forms: Vec<sums::Spec>, peer: usize) -> Result<(), NcclError> {
        let Collect { group, members, operation, tensors, done, .. } = collect;
        let count = members.len().max(1);
        let mut pairs = Vec::new();
        let held: Vec<bool> = forms.iter().map(Option::is_some).collect();
        for (tensor, form) in tensors.into_iter().zip(forms) {
            let Some((dtype, shape)) = form else { continue };
            let tensor = tensor.unwrap_or_else(|| zeros(&self.cube, dtype, &shape));
            let mut result = shape;
            match (operation, result.first_mut()) {
                (Collective::ShareOfSum, Some(rows)) => *rows /= count,
                (Collective::Join, Some(rows)) => *rows *= count,
                _ => {}
            }
            let target = Pinned::new(landing(&self.cube, dtype, &result))?;
            pairs.push((dtype, Pinned::new(tensor)?, target));
        }
        // The tensors were offered only now: their queue must be waited for as well.
        self.order.before_group(&self.stream, true)?;
        let communicator = self.groups.get(group as usize).and_then(Option::as_ref);
        let communicator = communicator.ok_or(NcclError::Stopped {
            what: "a collective",
            reason: format!("group {group} was not formed, or this rank is not in it"),
        })?;
        let event = Event::new(&self.order.gpu)?;
        let queued = communicator.collective(&self.stream, operation, &pairs).and_then(|()| self.settle(true));
        let (mut read, mut sums, mut written) = (Vec::new(), Vec::new(), pairs.into_iter());
        for there in held {
            let pair = if there { written.next() } else { None };
            sums.push(pair.map(|(_, from, to)| {
                read.push(from);
                to
            }));
        }
        self.fly(queued, event, peer, read, Landing::Sums(sums, done))
    }

    /// Puts an event behind what was queued last, and keeps what it uses, even where queuing it has failed.
    fn fly(
        &mut self,
        queued: Result<(), NcclError>,
        event: Event,
        peer: usize,
        held: Vec<Pinned>,
        landing: Landing,
    ) -> Result<(), NcclError> {
        let marked = queued.and_then(|()| event.record(&self.stream));
        let (event, since, pins) = (Arc::new(event), Instant::now(), Vec::new());
        let mut flight = Flight { event, peer, since, held, pins, landing };
        if marked.is_ok() && self.order.hands_out_early() {
            self.hand_out(&mut flight, true);
        }
        self.flights.push_back(flight);
        marked
    }

    /// Gives tensors to who waits for them. Their memory stays pinned as long as the flight.
    fn hand_out(&self, flight: &mut Flight, early: bool) {
        let after = early.then(|| flight.event.clone());
        let mut release = |pinned: Pinned| {
            let (tensor, pin) = pinned.into_parts();
            flight.pins.push(pin);
            tensor
        };
        match std::mem::replace(&mut flight.landing, Landing::Nobody) {
            Landing::Nobody => return,
            Landing::Slots(slots) => {
                for (slot, landed) in slots {
                    slot.fill(Content::Device(landed.into_iter().map(&mut release).collect(), after.clone()));
                }
            }
            Landing::Sums(sums, done) => {
                let sums = sums.into_iter().map(|sum| sum.map(&mut release)).collect();
                // Who asked may have given up.
                let _ = done.send(Ok((sums, after)));
            }
        }
        self.mesh.mailbox.wake();
    }

    /// Lets go of what is over, and looks for what went wrong.
    fn look(&mut self) -> Result<(), Trouble> {
        while let Some(flight) = self.flights.front() {
            let peer = flight.peer;
            let over = flight.event.is_over().map_err(with(peer))?;
            if !over {
                let late = flight.since.elapsed() > self.timeout;
                self.sound().map_err(with(peer))?;
                return if late { Err(with(peer)(NcclError::Late { what: "a group of transfers" })) } else { Ok(()) };
            }
            if let Some(mut flight) = self.flights.pop_front() {
                self.hand_out(&mut flight, false);
            }
        }
        Ok(())
    }

    /// Errors that NCCL found since it was last asked.
    fn sound(&self) -> Result<(), NcclError> {
        let mut all = std::iter::once(&self.world).chain(self.groups.iter().flatten());
        all.try_for_each(|communicator| communicator.is_settled("a group of transfers").map(drop))
    }

    /// Waits until what was queued is really on the queue: only then may an event go behind it.
    fn settle(&self, groups: bool) -> Result<(), NcclError> {
        let (what, deadline) = ("queuing a group of transfers", Instant::now() + self.timeout);
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

fn with(peer: usize) -> impl Fn(NcclError) -> Trouble {
    move |error| Trouble { peer, error }
}
