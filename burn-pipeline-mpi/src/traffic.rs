//! Messages in flight on one link: on its own communicator, and on one for each group of its ranks.
//!
//! 1. Every communicator is a [`Lane`]. Messages of different lanes do not mix, so sums over a group and messages
//!    of the plan keep their own orders.
//! 2. All envelopes that are not messages (gathers, questions, failures, closing) go over the link's own
//!    communicator, and into one mailbox.
//! 3. Closing goes over every communicator: a rank has closed the link once everything that it sent over any of
//!    them has arrived.

use crate::in_flight::InFlight;
use crate::incoming::ReceiveCounters;
use crate::lane::{Arrival, Lane};
use burn::tensor::Bytes;
use burn_pipeline::link::kit::{Envelope, Frame, Mailbox, Repeat};
use burn_pipeline::link::{Failure, LinkError, Monitor, WireError};
use mpi::topology::{Color, Communicator, SimpleCommunicator};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long ranks wait for each other to close a link once one of them has failed: time to report errors.
pub(crate) const REPORT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a link that has failed is served after this rank has dropped its end.
const LOST_AFTER: Duration = Duration::from_secs(60);

/// The failure message of a rank that ends the job.
const ENDS_JOB: &str = "it ended the job";

/// One link.
pub(crate) struct Traffic {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) counters: Arc<ReceiveCounters>,
    /// When this rank dropped its end.
    dropped: Option<Instant>,
    /// True if the others know that this rank sends nothing more.
    closed: bool,
    /// True if another rank ends the job.
    pub(crate) job_ends: bool,
    /// Ranks that are closing the link.
    closing: Vec<usize>,
    /// True if something has arrived for a waiting thread since the last call of [`Traffic::has_woken`].
    woken: bool,
    own: Lane,
    /// One lane for each group, in the order of their forming; `None` if this rank is not a member.
    groups: Vec<Option<Lane>>,
    sending: Vec<InFlight>,
}

/// The frame that the next message from or to a rank will have.
pub(crate) struct Primer {
    pub(crate) peer: usize,
    pub(crate) incoming: bool,
    pub(crate) frame: Frame,
}

impl Traffic {
    pub(crate) fn new(communicator: SimpleCommunicator) -> Self {
        let (rank, ranks) = (communicator.rank() as usize, communicator.size() as usize);
        Self {
            mailbox: Arc::new(Mailbox::new(rank, ranks)),
            counters: Arc::default(),
            dropped: None,
            closed: false,
            job_ends: false,
            closing: Vec::new(),
            woken: false,
            own: Lane::new(communicator, (0..ranks).collect()),
            groups: Vec::new(),
            sending: Vec::new(),
        }
    }

    /// Forms a group of these ranks, together with all ranks of the link.
    pub(crate) fn form(&mut self, ranks: &[usize]) {
        let color = if ranks.contains(&self.mailbox.rank) { Color::with_value(0) } else { Color::undefined() };
        let communicator = self.own.communicator.split_by_color(color);
        self.groups.push(communicator.map(|communicator| Lane::new(communicator, ranks.to_vec())));
    }

    /// Starts to send an envelope and a message's tensors, on the link or within a group.
    pub(crate) fn send(&mut self, group: Option<usize>, to: usize, envelope: Envelope, bodies: Vec<Bytes>) {
        let lane = match group {
            None => Some(&mut self.own),
            Some(group) => self.groups.get_mut(group).and_then(Option::as_mut),
        };
        // `MpiLink` refuses groups that do not exist.
        if let Some(lane) = lane {
            lane.send(to, envelope, bodies, &mut self.sending);
        }
    }

    fn send_all(&mut self, envelope: &Envelope) {
        self.mailbox.others().for_each(|rank| self.send(None, rank, envelope.clone(), Vec::new()));
    }

    /// Tells all other ranks that this one ends the job.
    pub(crate) fn announce_end(&mut self) {
        let failure = Failure { rank: self.mailbox.rank, message: ENDS_JOB.to_owned() };
        self.send_all(&Envelope::Failed(failure));
    }

    /// Prepares for the next messages on the link's own communicator, in both directions.
    pub(crate) fn prime(&mut self, frames: Vec<Primer>) {
        for Primer { peer, incoming, frame } in frames {
            match incoming {
                true => {
                    if let Err(source) = self.own.prime_incoming(peer, frame) {
                        self.refuse(peer, source);
                    }
                }
                false => self.own.prime_outgoing(peer, &frame, &mut self.sending),
            }
        }
    }

    fn lanes(&mut self) -> impl Iterator<Item = (Option<usize>, &mut Lane)> {
        let groups = self.groups.iter_mut().enumerate();
        let groups = groups.filter_map(|(group, lane)| Some((Some(group), lane.as_mut()?)));
        std::iter::once((None, &mut self.own)).chain(groups)
    }

    /// Records that this rank has dropped its end, and closes the link.
    pub(crate) fn drop_end(&mut self) {
        self.dropped.get_or_insert_with(Instant::now);
        self.close();
    }

    /// Closes the link for all other ranks, unless that was already done.
    pub(crate) fn close(&mut self) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        let (me, mut sending) = (self.mailbox.rank, std::mem::take(&mut self.sending));
        for (_, lane) in self.lanes() {
            lane.end_sending(&mut sending);
            for member in lane.members().to_vec().into_iter().filter(|&member| member != me) {
                lane.send(member, Envelope::Close, Vec::new(), &mut sending);
            }
        }
        self.sending = sending;
    }

    /// Returns true if a rank waits for this thread.
    pub(crate) fn is_urgent(&self) -> bool {
        let receiving = self.own.is_receiving() || self.groups.iter().flatten().any(Lane::is_receiving);
        self.mailbox.is_waiting() || !self.sending.is_empty() || receiving
    }

    /// Returns true if the link is not needed any more: this rank has dropped its end, everything has been sent,
    /// and all other ranks have closed the link.
    pub(crate) fn is_done(&self) -> bool {
        if self.dropped.is_none() {
            return false;
        }
        let received = self.own.is_over() && self.groups.iter().flatten().all(Lane::is_over);
        received && self.sending.is_empty() && self.mailbox.others().all(|rank| self.mailbox.has_closed(rank))
    }

    /// Returns true if this rank dropped its end of a failed link so long ago that the others will not close
    /// theirs.
    pub(crate) fn is_lost(&self) -> bool {
        self.dropped.is_some_and(|dropped| dropped.elapsed() > LOST_AFTER) && self.mailbox.has_failed()
    }

    /// Advances everything as far as possible without waiting. Returns true if anything moved.
    pub(crate) fn turn(&mut self) -> bool {
        let mut busy = self.report_failure();
        self.lanes().for_each(|(_, lane)| busy |= lane.probe());
        while let Some((group, arrival)) = self.next() {
            match arrival {
                Arrival::Envelope(from, bytes) => self.read(group, from, &bytes),
                Arrival::Message(from, message) => {
                    self.mailbox.deliver(group, from, message);
                    self.mailbox.wake();
                    self.woken |= self.mailbox.is_waiting();
                }
            }
            busy = true;
        }
        self.note_closed();
        let before = self.sending.len();
        let left = std::mem::take(&mut self.sending).into_iter().filter_map(|transfer| transfer.finish().err());
        self.sending = left.collect();
        busy || self.sending.len() < before
    }

    /// Tells the waiting thread which ranks have closed the link.
    fn note_closed(&mut self) {
        for rank in std::mem::take(&mut self.closing) {
            let mut lanes = std::iter::once(&self.own).chain(self.groups.iter().flatten());
            if lanes.all(|lane| lane.is_closed_by(rank)) {
                self.mailbox.handle(rank, Envelope::Close);
            } else {
                self.closing.push(rank);
            }
        }
    }

    /// Returns the next envelope or message of any lane.
    fn next(&mut self) -> Option<(Option<usize>, Arrival)> {
        self.lanes().find_map(|(group, lane)| Some((group, lane.next()?)))
    }

    /// Sends a failure that was recorded in this process to all other ranks.
    fn report_failure(&mut self) -> bool {
        let failure = self.mailbox.take_failure();
        failure.map(|failure| self.send_all(&Envelope::Failed(failure))).is_some()
    }

    /// Returns true if a waiting thread was woken since the last call.
    pub(crate) fn has_woken(&mut self) -> bool {
        std::mem::take(&mut self.woken)
    }

    fn read(&mut self, group: Option<usize>, from: usize, bytes: &[u8]) {
        match Envelope::read(bytes) {
            None => self.fail(from, "it is not an envelope; build all ranks from one version"),
            Some(Envelope::Message(frame)) => self.receive(group, from, &frame),
            Some(Envelope::Close) => {
                let lane = self.lanes().find(|(other, _)| *other == group);
                lane.into_iter().for_each(|(_, lane)| lane.end_receiving(from));
                if !self.closing.contains(&from) {
                    self.closing.push(from);
                }
            }
            Some(envelope) => {
                self.job_ends |= matches!(&envelope, Envelope::Failed(failure) if failure.message == ENDS_JOB);
                self.woken |= matches!(envelope, Envelope::Gather { .. }) && self.mailbox.is_waiting();
                if let Some(reply) = self.mailbox.handle(from, envelope) {
                    self.send(None, from, reply, Vec::new());
                }
            }
        }
    }

    /// Starts to receive the tensors of a message.
    fn receive(&mut self, group: Option<usize>, from: usize, frame: &[u8]) {
        if group.is_none() {
            self.counters.count(Repeat::is(frame));
        }
        let received = match self.lanes().find(|(other, _)| *other == group) {
            Some((_, lane)) => lane.receive(from, frame),
            None => Ok(()),
        };
        if let Err(source) = received {
            self.refuse(from, source);
        }
    }

    /// Fails the link, since a rank's message cannot be received.
    fn refuse(&mut self, from: usize, source: WireError) {
        let error = LinkError::Wire { rank: self.mailbox.rank, peer: from, source };
        self.fail(from, &error.to_string());
        self.mailbox.break_off(error);
    }

    /// Records that a rank's bytes cannot be used; the next turn reports it to all other ranks.
    fn fail(&mut self, from: usize, reason: &str) {
        let message = format!("rank {} cannot read what rank {from} sent: {reason}", self.mailbox.rank);
        self.mailbox.abort(Failure { rank: from, message });
    }
}
