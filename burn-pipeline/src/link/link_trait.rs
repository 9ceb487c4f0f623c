//! The trait of all transports.

use super::collectives::Collectives;
use super::error::LinkError;
use super::header::{Header, Message};
use super::monitor::{Activity, Monitor};
use crate::payload::Payload;
use std::sync::Arc;
use std::time::Instant;

/// One rank's end of a link.
///
/// Messages from one rank to another arrive in the order of the sends, and travel while ranks compute. No send waits
/// for its receive: a rank receives messages where it uses them, so two ranks whose sends waited would deadlock.
pub trait Link: Send {
    /// This rank.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn ranks(&self) -> usize;

    /// A view of the link for a thread that does not hold it.
    fn monitor(&self) -> Arc<dyn Monitor>;

    /// Moves tensors of this process to this rank's device. A tensor that is already there is not copied.
    fn to_device(&self, payload: Payload) -> Payload;

    /// Records what this rank is doing, for the errors of ranks that wait for it. While it builds, writes or reads,
    /// their waits are extended.
    fn set_activity(&mut self, activity: Activity);

    /// Sends a message to any rank, including this one. When it returns, the payload's memory may be reused. It
    /// must not wait until the other rank receives, however many messages that rank has not received yet.
    ///
    /// # Errors
    /// Returns [`LinkError`] if another rank failed, or the deadline passed.
    fn send(&mut self, to: usize, message: Message, deadline: Instant) -> Result<(), LinkError>;

    /// Waits for the message with this header, which must be the next one from that rank.
    ///
    /// # Errors
    /// Returns [`LinkError`] if another rank failed, that rank has left ([`LinkError::Left`]), the deadline passed,
    /// or another message is next.
    fn receive(&mut self, from: usize, header: Header, deadline: Instant) -> Result<Payload, LinkError>;

    /// Waits until the next message from one of these ranks has arrived, and returns its sender and header.
    /// Receiving it then does not wait. With a deadline in the past it only checks.
    ///
    /// Returns `None` when the deadline passes, or at once when one of these ranks has left and sent nothing more.
    /// A link that cannot look ahead always returns `None`, which is the default.
    ///
    /// # Errors
    /// Returns [`LinkError`] if another rank failed.
    fn probe(&mut self, from: &[usize], deadline: Instant) -> Result<Option<(usize, Header)>, LinkError> {
        let _ = (from, deadline);
        Ok(None)
    }

    /// Gives every rank the bytes of all ranks, in rank order. All ranks must call it, in the same order.
    ///
    /// # Errors
    /// Returns [`LinkError`] if another rank failed, or the deadline passed.
    fn all_gather(&mut self, bytes: Vec<u8>, deadline: Instant) -> Result<Vec<Vec<u8>>, LinkError>;

    /// The collectives that the transport runs by itself; the same on all ranks. By default there are none, and ranks
    /// send each other messages instead.
    fn collectives(&mut self) -> Option<&mut dyn Collectives> {
        None
    }

    /// Returns once all ranks have called it.
    ///
    /// # Errors
    /// Returns [`LinkError`] if another rank failed, or the deadline passed; the error then names a rank that did not
    /// call it.
    fn barrier(&mut self, deadline: Instant) -> Result<(), LinkError> {
        self.all_gather(Vec::new(), deadline).map(drop)
    }

    /// Tells all other ranks that this one failed. Only the first failure counts.
    fn abort(&mut self, message: String);

    /// Tells all other ranks that this rank's call failed, while the link still works: their waits and sends end
    /// with [`LinkError::Interrupted`] until all ranks have called [`Link::recover`]. A gather that this rank has
    /// ended is of an earlier call: ranks that still wait in it end it first.
    ///
    /// By default it aborts, which closes the pipeline.
    fn interrupt(&mut self, message: String) {
        self.abort(message);
    }

    /// Clears an interruption, and drops everything that was sent before it and not received, gathers included. All
    /// ranks call it, whether or not they know of the interruption. Messages that a rank sends afterwards are
    /// received afterwards. Activities stay, and so do the groups and sets of [`Link::collectives`].
    ///
    /// By default it returns an error: a link that cannot recover is closed by the first failure.
    ///
    /// # Errors
    /// Returns [`LinkError`] if the link has ended ([`Link::abort`]), a rank has left, or a rank did not call it
    /// before the deadline.
    fn recover(&mut self, deadline: Instant) -> Result<(), LinkError> {
        let _ = deadline;
        let message = "this transport cannot recover from a failure".to_owned();
        Err(LinkError::Closed { rank: self.rank(), message })
    }
}
