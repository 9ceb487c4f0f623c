//! One rank's end of a link over TCP.

use super::error::TcpError;
use super::mesh::{Connections, Mesh};
use super::packet::Received;
use crate::link::kit::endpoint::Endpoint;
use crate::link::kit::mailbox::Mailbox;
use crate::link::link_trait::Link;
use crate::link::rendezvous::Rendezvous;
use burn::tensor::Device;
use std::sync::Arc;
use std::time::Duration;

/// One rank's end of a link over TCP.
///
/// Sends are unbounded: messages wait in this process's memory until the receiver takes them. Only processes that
/// [`Rendezvous::admission`] admits can join; data is not encrypted.
#[derive(Debug)]
pub struct TcpLink {
    endpoint: Endpoint<Mesh>,
}

impl TcpLink {
    /// Connects to the other ranks at rank 0's address, within `timeout`. Received tensors are put on `device`.
    ///
    /// # Errors
    /// Returns [`TcpError`] if ranks are missing at the deadline, rank 0 refuses this process, or there is no secret
    /// and the address is not on this machine.
    pub fn connect(rendezvous: &Rendezvous, device: Device, timeout: Duration) -> Result<Self, TcpError> {
        let connections = Mesh::connect_at(rendezvous, timeout)?;
        Self::over(rendezvous.rank, rendezvous.ranks, connections, device)
    }

    /// Connects the ranks of another link, which exchange their addresses over it. All ranks must call it.
    ///
    /// # Errors
    /// As [`TcpLink::connect`], and if the link fails.
    pub fn by_link(link: &mut dyn Link, device: Device, timeout: Duration) -> Result<Self, TcpError> {
        let connections = Mesh::connect_over(link, timeout)?;
        Self::over(link.rank(), link.ranks(), connections, device)
    }

    fn over(rank: usize, ranks: usize, connections: Connections, device: Device) -> Result<Self, TcpError> {
        let mailbox = Arc::new(Mailbox::new(rank, ranks));
        let inbox = mailbox.clone();
        let sink = move |from, received| {
            // Only links between GPUs use offers and notes.
            if let Received::Message(frame, bodies) = received {
                inbox.deliver(from, (frame, bodies));
            }
        };
        Ok(Self { endpoint: Endpoint::new(Mesh::start(connections, mailbox, sink)?, device) })
    }
}

impl Link for TcpLink {
    crate::forward_link!(endpoint: rank, ranks, monitor, to_device, set_activity);
    crate::forward_link!(endpoint: send, receive, probe, all_gather, abort, interrupt, recover);
}
