//! A link made of a mailbox and a way to send envelopes.
//!
//! Guarantees: a send does not wait for its receiver; a rank may send to itself; before a wait ends at its
//! deadline, it asks all ranks what they are doing; a failure is sent to all other ranks, once. Dropping a link
//! closes it for all other ranks; dropping it in a panic is a failure.
//!
//! After an interruption all ranks can go on if a rank's messages and envelopes to another rank keep one order. A
//! transport whose tensors travel beside its envelopes (MPI) handles [`Envelope::Recovered`] once the messages before
//! it are complete. One that cannot does not forward [`Link::interrupt`] and [`Link::recover`]: any failure closes it.

use super::envelope::Envelope;
use super::frame::Frame;
use super::mailbox::Mailbox;
use super::packed::Packed;
use super::waiting::Awaited;
use crate::link::error::{Failure, LinkError, PANICKED};
use crate::link::header::{Header, Message};
use crate::link::link_trait::Link;
use crate::link::monitor::{Activity, Monitor};
use crate::link::wire_error::WireError;
use crate::payload::Payload;
use burn::tensor::{Bytes, Device};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long messages that travel beside the envelopes may take after their sender has closed the link.
const LATE: Duration = Duration::from_secs(2);
/// The longest value of a gather: with its envelope it is at most 1 GiB, the longest packet of TCP and piece of MPI.
const LONGEST_VALUE: usize = (1 << 30) - 64;

/// The other ranks of a link. A transport implements it, and [`Endpoint`] makes a link of it.
pub trait Peers: Debug + Send + Sync + 'static {
    /// Where the transport's threads put what arrives.
    fn mailbox(&self) -> &Mailbox;

    /// Sends an envelope, and a message's tensors after it, without waiting for the receiver. `to` is never this
    /// rank. Sends nothing if the connection to that rank is lost: the thread that receives from it reports the
    /// loss.
    ///
    /// # Errors
    /// Returns [`LinkError`] if the transport has ended.
    fn send(&self, to: usize, envelope: Envelope, bodies: Vec<Bytes>) -> Result<(), LinkError>;

    /// Ends the link when its [`Endpoint`] is dropped: sends [`Envelope::Close`] to all other ranks, and gives
    /// earlier envelopes some time to leave this process.
    fn close(&self);

    /// Sends an envelope to all other ranks.
    fn send_all(&self, envelope: &Envelope) {
        for rank in self.mailbox().others() {
            // This fails if the transport has ended, which the next call for a message returns as an error.
            let _ = self.send(rank, envelope.clone(), Vec::new());
        }
    }
}

impl<P: Peers> Monitor for P {
    fn activity(&self, rank: usize) -> Activity {
        // Other ranks are asked only when a wait is about to fail; the error then contains their answers.
        if rank == self.mailbox().rank { self.mailbox().own_activity() } else { Activity::Idle }
    }

    fn progress(&self) -> u64 {
        self.mailbox().progress()
    }

    fn abort(&self, failure: Failure) {
        self.mailbox().fail(failure).iter().for_each(|envelope| self.send_all(envelope));
    }

    fn failure(&self) -> Option<Failure> {
        self.mailbox().failure()
    }
}

/// One rank's end of a link over any [`Peers`].
///
/// Sends are unbounded: messages wait in this process's memory until the receiver takes them. Dropping it closes
/// the link.
#[derive(Debug)]
pub struct Endpoint<P: Peers> {
    peers: Arc<P>,
    device: Device,
}

impl<P: Peers> Endpoint<P> {
    /// An end whose received tensors are put on `device`.
    pub fn new(peers: Arc<P>, device: Device) -> Self {
        Self { peers, device: device.inner() }
    }

    /// The other ranks.
    pub fn peers(&self) -> &Arc<P> {
        &self.peers
    }

    /// What has arrived.
    pub fn mailbox(&self) -> &Mailbox {
        self.peers.mailbox()
    }

    /// The error of a message from or to a rank.
    pub fn wire(&self, peer: usize, source: WireError) -> LinkError {
        LinkError::Wire { rank: self.mailbox().rank, peer, source }
    }

    /// Sends a packed message. A message to several ranks is then read from its device once.
    ///
    /// # Errors
    /// Returns [`LinkError`] if another rank failed, or there is no such rank.
    pub fn send_packed(&self, to: usize, packed: Packed) -> Result<(), LinkError> {
        let to = self.mailbox().known(to)?;
        self.mailbox().fail_if_failed()?;
        if to == self.mailbox().rank {
            let frame = Frame::read(&packed.frame).map_err(|source| self.wire(to, source))?;
            self.mailbox().deliver(to, (frame, packed.bodies));
            return Ok(());
        }
        self.peers.send(to, Envelope::Message(packed.frame), packed.bodies)
    }

    /// Tells all other ranks that this one failed, if its thread panics. The endpoint does so when it is dropped. A
    /// wrapper that has more to do before the link closes calls it first.
    pub fn abort_if_panicking(&mut self) {
        if std::thread::panicking() {
            self.abort(PANICKED.to_owned());
        }
    }

    /// Waits until `take` returns what was received from a rank; `what` names it in the error. After the rank has
    /// closed the link, messages that it sent before have two seconds to arrive.
    ///
    /// # Errors
    /// Returns the first failure, or an error if the deadline passes.
    pub fn wait_for<T>(
        &self,
        from: usize,
        what: &dyn Fn() -> String,
        deadline: Instant,
        mut take: impl FnMut() -> Option<T>,
    ) -> Result<T, LinkError> {
        let awaited = Awaited { peer: &|_| from, what, ask: &self.ask(), late: LATE };
        self.mailbox().wait(deadline, &awaited, |_| take())
    }

    /// Asks all other ranks what they are doing.
    fn ask(&self) -> impl Fn(u64) {
        |question| self.peers.send_all(&Envelope::Ask { question })
    }
}

impl<P: Peers> Link for Endpoint<P> {
    fn rank(&self) -> usize {
        self.mailbox().rank
    }

    fn ranks(&self) -> usize {
        self.mailbox().ranks
    }

    fn monitor(&self) -> Arc<dyn Monitor> {
        self.peers.clone()
    }

    fn to_device(&self, payload: Payload) -> Payload {
        payload.map(|_, tensor| tensor.to_device(&self.device))
    }

    fn set_activity(&mut self, activity: Activity) {
        self.mailbox().set_activity(activity);
    }

    fn send(&mut self, to: usize, message: Message, _: Instant) -> Result<(), LinkError> {
        // Check before the tensors are read from their device, which takes time.
        let to = self.mailbox().known(to)?;
        self.mailbox().fail_if_failed()?;
        let unsent = |source| LinkError::Unsent { rank: self.mailbox().rank, peer: to, source };
        let packed = Packed::new(message).map_err(unsent)?;
        self.send_packed(to, packed)
    }

    fn receive(&mut self, from: usize, header: Header, deadline: Instant) -> Result<Payload, LinkError> {
        self.mailbox().receive(from, header, &self.device, deadline, &self.ask())
    }

    fn probe(&mut self, from: &[usize], deadline: Instant) -> Result<Option<(usize, Header)>, LinkError> {
        self.mailbox().probe(from, deadline)
    }

    fn all_gather(&mut self, bytes: Vec<u8>, deadline: Instant) -> Result<Vec<Vec<u8>>, LinkError> {
        self.mailbox().fail_if_failed()?;
        if let (true, Some(peer)) = (bytes.len() > LONGEST_VALUE, self.mailbox().others().next()) {
            let source = WireError::LongValue { bytes: bytes.len() };
            return Err(LinkError::Unsent { rank: self.mailbox().rank, peer, source });
        }
        let round = self.mailbox().gathered();
        for rank in self.mailbox().others() {
            self.peers.send(rank, Envelope::Gather { round, bytes: bytes.clone() }, Vec::new())?;
        }
        self.mailbox().gather(round, bytes, deadline, &self.ask())
    }

    fn abort(&mut self, message: String) {
        self.peers.abort(Failure { rank: self.mailbox().rank, message });
    }

    fn interrupt(&mut self, message: String) {
        let failure = Failure { rank: self.mailbox().rank, message };
        self.mailbox().interrupt(failure).iter().for_each(|envelope| self.peers.send_all(envelope));
    }

    fn recover(&mut self, deadline: Instant) -> Result<(), LinkError> {
        // What this rank has sent to itself is dropped too.
        self.mailbox().handle(self.rank(), Envelope::Recovered);
        self.peers.send_all(&Envelope::Recovered);
        self.mailbox().recover(deadline, &self.ask())
    }
}

impl<P: Peers> Drop for Endpoint<P> {
    fn drop(&mut self) {
        self.abort_if_panicking();
        // Others may learn that this rank leaves before they learn of the failure that caused it.
        if let Some(failure) = self.mailbox().end() {
            self.peers.send_all(&self.mailbox().failed(failure));
        }
        self.peers.close();
    }
}
