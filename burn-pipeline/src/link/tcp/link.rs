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
/// Sends are unbounded: what is sent waits in this process's memory until the receiver takes it. Only
/// processes that [`Rendezvous::admission`] admits can join; data is not encrypted.
#[derive(Debug)]
pub struct TcpLink {
    endpoint: Endpoint<Mesh>,
}

impl TcpLink {
    /// Connects to the other ranks at rank 0's address. What the link receives is put on `device`.
    ///
    /// `timeout` is the longest that it may take.
    ///
    /// # Errors
    /// If ranks are missing at the deadline, rank 0 refuses this process, or there is no secret and the address is not of
    /// this machine.
    pub fn connect(rendezvous: &Rendezvous, device: Device, timeout: Duration) -> Result<Self, TcpError> {
        let connections = Mesh::connect_at(rendezvous, timeout)?;
        Self::over(rendezvous.rank, rendezvous.ranks, connections, device)
    }

    /// Connects the ranks of another link, over which they exchange their addresses. All ranks must call it.
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
            // Offers and notes are for links between GPUs.
            if let Received::Message(frame, bodies) = received {
                inbox.deliver(None, from, (frame, bodies));
                inbox.wake();
            }
        };
        Ok(Self { endpoint: Endpoint::new(Mesh::start(connections, mailbox, sink)?, device) })
    }
}

impl Link for TcpLink {
    crate::forward_link!(endpoint: rank, ranks, monitor, to_device, set_activity);
    crate::forward_link!(endpoint: send, receive, probe, all_gather, abort, interrupt, recover);
}
