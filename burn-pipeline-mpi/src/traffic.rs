//! Messages in flight on one link.
//!
//! All envelopes that are not messages (gathers, questions, failures, recoveries, closing) go into one mailbox. A rank
//! has closed the link once everything that it sent has arrived.

use crate::incoming::ReceiveCounters;
use crate::lane::{Arrival, Lane};
use burn::tensor::Bytes;
use burn_pipeline::link::kit::{Envelope, Mailbox, Repeat};
use burn_pipeline::link::{Failure, LinkError, WireError};
use mpi::topology::{Communicator, SimpleCommunicator};
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
    lane: Lane,
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
            lane: Lane::new(communicator),
        }
    }

    /// Starts to send an envelope and a message's tensors.
    pub(crate) fn send(&mut self, to: usize, envelope: Envelope, bodies: Vec<Bytes>) {
        self.lane.send(to, envelope, bodies);
    }

    fn send_all(&mut self, envelope: &Envelope) {
        self.mailbox.others().for_each(|rank| self.send(rank, envelope.clone(), Vec::new()));
    }

    /// Tells all other ranks that this one ends the job.
    pub(crate) fn announce_end(&mut self) {
        let failure = Failure { rank: self.mailbox.rank, message: ENDS_JOB.to_owned() };
        let envelope = self.mailbox.failed(failure);
        self.send_all(&envelope);
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
        self.lane.end_sending();
        self.send_all(&Envelope::Close);
    }

    /// Returns true if a rank waits for this thread.
    pub(crate) fn is_urgent(&self) -> bool {
        self.mailbox.is_waiting() || self.lane.is_busy()
    }

    /// Returns true if the link is not needed any more: this rank has dropped its end, everything has been sent,
    /// and all other ranks have closed the link.
    pub(crate) fn is_done(&self) -> bool {
        self.dropped.is_some() && self.lane.is_over() && self.mailbox.others().all(|rank| self.mailbox.has_closed(rank))
    }

    /// Returns true if this rank dropped its end of a failed link so long ago that the others will not close
    /// theirs.
    pub(crate) fn is_lost(&self) -> bool {
        self.dropped.is_some_and(|dropped| dropped.elapsed() > LOST_AFTER) && self.mailbox.has_failed()
    }

    /// Advances everything as far as possible without waiting. Returns true if anything moved.
    pub(crate) fn turn(&mut self) -> bool {
        let mut busy = self.lane.probe();
        while let Some(arrival) = self.lane.next() {
            match arrival {
                Arrival::Envelope(from, bytes) => self.read(from, &bytes),
                Arrival::Message(from, message) => {
                    self.mailbox.deliver(from, message);
                    self.woken |= self.mailbox.is_waiting();
                }
            }
            busy = true;
        }
        self.note_closed();
        self.lane.clear_sent() || busy
    }

    /// Tells the waiting thread which ranks have closed the link.
    fn note_closed(&mut self) {
        for rank in std::mem::take(&mut self.closing) {
            if self.lane.is_closed_by(rank) {
                self.mailbox.handle(rank, Envelope::Close);
            } else {
                self.closing.push(rank);
            }
        }
    }

    /// Returns true if a waiting thread was woken since the last call.
    pub(crate) fn has_woken(&mut self) -> bool {
        std::mem::take(&mut self.woken)
    }

    fn read(&mut self, from: usize, bytes: &[u8]) {
        match Envelope::read(bytes) {
            None => self.fail(from, "it is not an envelope; build all ranks from one version"),
            Some(Envelope::Message(frame)) => self.receive(from, &frame),
            Some(Envelope::Close) => {
                self.lane.end_receiving(from);
                if !self.closing.contains(&from) {
                    self.closing.push(from);
                }
            }
            Some(envelope) => {
                self.job_ends |= matches!(&envelope, Envelope::Failed { failure, .. } if failure.message == ENDS_JOB);
                self.woken |= matches!(envelope, Envelope::Gather { .. }) && self.mailbox.is_waiting();
                if let Some(reply) = self.mailbox.handle(from, envelope) {
                    self.send(from, reply, Vec::new());
                }
            }
        }
    }

    /// Starts to receive the tensors of a message.
    fn receive(&mut self, from: usize, frame: &[u8]) {
        self.counters.count(Repeat::is(frame));
        if let Err(source) = self.lane.receive(from, frame) {
            self.refuse(from, source);
        }
    }

    /// Fails the link, since a rank's message cannot be received.
    fn refuse(&mut self, from: usize, source: WireError) {
        let error = LinkError::Wire { rank: self.mailbox.rank, peer: from, source };
        let reason = error.to_string();
        // First its own waits: what others are told would be reported in place of the cause.
        self.mailbox.break_off(error);
        self.fail(from, &reason);
    }

    /// Records that a rank's bytes cannot be used, and tells all other ranks.
    fn fail(&mut self, from: usize, reason: &str) {
        let message = format!("rank {} cannot read what rank {from} sent: {reason}", self.mailbox.rank);
        let told = self.mailbox.fail(Failure { rank: from, message });
        told.iter().for_each(|envelope| self.send_all(envelope));
    }
}
