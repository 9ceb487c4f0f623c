//! What links over TCP connections have in common: messages, gathers, failures and the end.

use super::connect::Connections;
use super::error::TcpError;
use super::mesh::Mesh;
use super::packet::{Packet, Sink};
use crate::link::error::{Failure, LinkError};
use crate::link::header::Message;
use crate::link::kit::envelope::Envelope;
use crate::link::kit::mailbox::{Contents, Mailbox};
use crate::link::kit::packed::Packed;
use crate::link::kit::waiting::Awaited;
use crate::link::wire_error::WireError;
use std::sync::Arc;
use std::time::Instant;

/// One rank's end of TCP connections to all others.
///
/// Dropping it closes the link.
#[derive(Debug)]
pub struct Endpoint {
    /// The connections.
    pub mesh: Arc<Mesh>,
    round: u64,
}

impl Endpoint {
    /// Serves the connections. `sink` gets the mailbox, and gives what takes messages, offers and notes.
    ///
    /// # Errors
    /// As [`Mesh::start`].
    pub fn start(
        rank: usize,
        ranks: usize,
        connections: Connections,
        sink: impl FnOnce(Arc<Mailbox>) -> Arc<Sink>,
    ) -> Result<Self, TcpError> {
        let mailbox = Arc::new(Mailbox::new(rank, ranks));
        let mesh = Mesh::start(connections, mailbox.clone(), &sink(mailbox))?;
        Ok(Self { mesh, round: 0 })
    }

    /// What has arrived.
    pub fn mailbox(&self) -> &Mailbox {
        &self.mesh.mailbox
    }

    /// The error of a message from or to a rank.
    pub fn wire(&self, peer: usize, source: WireError) -> LinkError {
        LinkError::Wire { rank: self.mailbox().rank, peer, source }
    }

    /// Sends a message, with the bytes of its tensors.
    ///
    /// # Errors
    /// If another rank failed, there is no such rank, or the message cannot be written as bytes.
    pub fn send(&self, to: usize, message: Message) -> Result<(), LinkError> {
        let to = self.mailbox().known(to)?;
        self.mailbox().fail_if_failed()?;
        let Packed { frame, bodies } = Packed::new(message).map_err(|source| self.wire(to, source))?;
        self.mesh.send(to, Packet::Envelope(Envelope::Message(frame), bodies));
        Ok(())
    }

    /// Waits until `take` gives what was received from a rank.
    ///
    /// # Errors
    /// As [`Mailbox::wait`].
    pub fn wait_for<T>(
        &self,
        from: usize,
        what: &dyn Fn() -> String,
        deadline: Instant,
        take: impl FnMut(&mut Contents) -> Option<T>,
    ) -> Result<T, LinkError> {
        let ask = |question| self.mesh.ask(question);
        let awaited = Awaited { peer: &|_| from, what, ask: &ask };
        self.mailbox().wait(deadline, &awaited, take)
    }

    /// As [`Link::all_gather`](crate::link::Link::all_gather).
    ///
    /// # Errors
    /// As [`Link::all_gather`](crate::link::Link::all_gather).
    pub fn all_gather(&mut self, bytes: Vec<u8>, deadline: Instant) -> Result<Vec<Vec<u8>>, LinkError> {
        self.mailbox().fail_if_failed()?;
        let round = self.round;
        self.round += 1;
        self.mesh.send_all(&Envelope::Gather { round, bytes: bytes.clone() });
        self.mailbox().gather(round, bytes, deadline, &|question| self.mesh.ask(question))
    }

    /// As [`Link::abort`](crate::link::Link::abort).
    pub fn abort(&self, message: String) {
        self.mesh.fail(Failure { rank: self.mailbox().rank, message });
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.mesh.close();
    }
}
