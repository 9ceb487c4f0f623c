//! One rank's end of a link over TCP.

use super::connect::{Connections, connect_at, connect_over};
use super::endpoint::Endpoint;
use super::error::TcpError;
use super::packet::{Received, Sink};
use crate::link::activity::Activity;
use crate::link::error::LinkError;
use crate::link::header::{Header, Message};
use crate::link::kit::mailbox::Mailbox;
use crate::link::link_trait::Link;
use crate::link::monitor::Monitor;
use crate::link::rendezvous::Rendezvous;
use crate::plan::Transport;
use crate::stage::Payload;
use burn::tensor::Device;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One rank's end of a link over TCP.
///
/// Sends are unbounded: what is sent waits in this process's memory until the receiver takes it. Data is neither encrypted
/// nor authenticated.
#[derive(Debug)]
pub struct TcpLink {
    endpoint: Endpoint,
    device: Device,
}

impl TcpLink {
    /// Connects to the other ranks at rank 0's address. What the link receives is put on `device`.
    ///
    /// `timeout` is the longest that it may take.
    ///
    /// # Errors
    /// If ranks are missing at the deadline, or a process is not one of them.
    pub fn connect(rendezvous: &Rendezvous, device: Device, timeout: Duration) -> Result<Self, TcpError> {
        let connections = connect_at(rendezvous, timeout)?;
        Self::over(rendezvous.rank, rendezvous.ranks, connections, device)
    }

    /// Connects the ranks of another link, over which they exchange their addresses. All ranks must call it.
    ///
    /// # Errors
    /// As [`TcpLink::connect`], and if the link fails.
    pub fn by_link(link: &mut dyn Link, device: Device, timeout: Duration) -> Result<Self, TcpError> {
        let connections = connect_over(link, timeout)?;
        Self::over(link.rank(), link.ranks(), connections, device)
    }

    fn over(rank: usize, ranks: usize, connections: Connections, device: Device) -> Result<Self, TcpError> {
        let sink = |mailbox: Arc<Mailbox>| -> Arc<Sink> {
            Arc::new(move |from, received| {
                // Offers and notes are for links between GPUs.
                if let Received::Message(frame, bodies) = received {
                    mailbox.deliver(None, from, (frame, bodies));
                    mailbox.wake();
                }
            })
        };
        Ok(Self { endpoint: Endpoint::start(rank, ranks, connections, sink)?, device: device.inner() })
    }
}

impl Link for TcpLink {
    fn rank(&self) -> usize {
        self.endpoint.mailbox().rank
    }

    fn ranks(&self) -> usize {
        self.endpoint.mailbox().ranks
    }

    fn transport(&self) -> Transport {
        Transport::Unbounded
    }

    fn monitor(&self) -> Arc<dyn Monitor> {
        self.endpoint.mesh.clone()
    }

    fn to_device(&self, payload: Payload) -> Payload {
        let Ok(payload) = payload.map_tensors(|_, tensor| Ok::<_, Infallible>(tensor.to_device(&self.device)));
        payload
    }

    fn set_activity(&mut self, activity: Activity) {
        self.endpoint.mailbox().set_activity(activity);
    }

    fn send(&mut self, to: usize, message: Message, _: Instant) -> Result<(), LinkError> {
        self.endpoint.send(to, message)
    }

    fn receive(&mut self, from: usize, header: Header, deadline: Instant) -> Result<Payload, LinkError> {
        let ask = |question| self.endpoint.mesh.ask(question);
        self.endpoint.mailbox().receive(None, from, header, &self.device, deadline, &ask)
    }

    fn probe(&mut self, from: &[usize], deadline: Instant) -> Result<Option<(usize, Header)>, LinkError> {
        self.endpoint.mailbox().probe(from, deadline)
    }

    fn all_gather(&mut self, bytes: Vec<u8>, deadline: Instant) -> Result<Vec<Vec<u8>>, LinkError> {
        self.endpoint.all_gather(bytes, deadline)
    }

    fn abort(&mut self, message: String) {
        self.endpoint.abort(message);
    }
}
