//! One rank's end of a link over MPI.

use crate::incoming::ReceiveCounters;
use crate::progress::{Command, Opened};
use burn::tensor::{Bytes, Device};
use burn_pipeline::link::kit::{Endpoint, Envelope, Mailbox, Packed, Peers};
use burn_pipeline::link::{Link, LinkError};
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// One rank's end of a link over MPI; [`Mpi::link`](crate::Mpi::link) opens it.
///
/// Sends are unbounded: messages wait in this process's memory until the receiver takes them.
#[derive(Debug)]
pub struct MpiLink {
    endpoint: Endpoint<Outbox>,
    counters: Arc<ReceiveCounters>,
}

/// The other ranks, through the progress thread.
#[derive(Debug)]
struct Outbox {
    link: usize,
    mailbox: Arc<Mailbox>,
    commands: Sender<Command>,
}

impl Outbox {
    fn command(&self, command: Command) -> Result<(), LinkError> {
        self.commands.send(command).map_err(|_| LinkError::Closed {
            rank: self.mailbox.rank,
            message: "MPI has ended; drop `Mpi` after the pipelines that use it".to_owned(),
        })
    }
}

impl Peers for Outbox {
    fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    fn send(&self, to: usize, envelope: Envelope, bodies: Vec<Bytes>) -> Result<(), LinkError> {
        self.command(Command::Send { link: self.link, to, envelope, bodies })
    }

    fn close(&self) {
        // If MPI has ended, nothing is left to close.
        let _ = self.command(Command::Close { link: self.link });
    }
}

impl MpiLink {
    pub(crate) fn new(opened: Opened, commands: Sender<Command>, device: Device) -> Self {
        let Opened { link, mailbox, counters } = opened;
        let endpoint = Endpoint::new(Arc::new(Outbox { link, mailbox, commands }), device);
        Self { endpoint, counters }
    }

    /// Counts how the receives of this link's messages were posted. It continues to count.
    pub fn receive_counters(&self) -> Arc<ReceiveCounters> {
        self.counters.clone()
    }

    /// Sends a packed message. A message to several ranks is then read from its device once.
    ///
    /// # Errors
    /// As [`Link::send`].
    pub fn send_packed(&mut self, to: usize, packed: Packed) -> Result<(), LinkError> {
        self.endpoint.send_packed(to, packed)
    }
}

impl Link for MpiLink {
    burn_pipeline::forward_link!(endpoint: rank, ranks, monitor, to_device, set_activity);
    burn_pipeline::forward_link!(endpoint: send, receive, probe, all_gather, abort, interrupt, recover);
}
