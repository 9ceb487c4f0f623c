//! A connection to every other rank, each with a reading and a writing thread.

use super::error::TcpError;
use super::packet::{Packet, Received, Sink, write_all};
use super::reader::Reader;
use crate::link::error::LinkError;
use crate::link::kit::endpoint::Peers;
use crate::link::kit::envelope::Envelope;
use crate::link::kit::mailbox::Mailbox;
use burn::tensor::Bytes;
use parking_lot::Mutex;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// The longest time for writing the last packets when a link is dropped.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// One connection to every other rank, in rank order; `None` for this rank. See [`Mesh::connect_at`].
pub type Connections = Vec<Option<TcpStream>>;

/// The connections of one rank.
#[derive(Debug)]
pub struct Mesh {
    /// What has arrived.
    pub mailbox: Arc<Mailbox>,
    /// By rank; `None` for this one.
    connections: Vec<Option<Connection>>,
    /// Peers whose writing thread has ended.
    written: Mutex<Receiver<usize>>,
}

/// The connection to a rank, and the queue of what is to be written to it.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    packets: Sender<Packet>,
}

impl Mesh {
    /// Starts the threads. `sink` gets what they receive, in each sender's order.
    ///
    /// # Errors
    /// Returns [`TcpError`] if a connection is broken, or a thread cannot be started.
    pub fn start(
        connections: Connections,
        mailbox: Arc<Mailbox>,
        sink: impl Fn(usize, Received) + Send + Sync + 'static,
    ) -> Result<Arc<Self>, TcpError> {
        let sink: Arc<Sink> = Arc::new(sink);
        let ((done, written), mut readers) = (channel(), Vec::new());
        let start = |(peer, connection): (usize, Option<TcpStream>)| {
            let Some(stream) = connection else { return Ok(None) };
            let broken = TcpError::broken(peer);
            stream.set_nodelay(true).map_err(&broken)?;
            let (packets, taken) = channel();
            let (outgoing, done) = (stream.try_clone().map_err(&broken)?, done.clone());
            let body = move || {
                write_all(outgoing, &taken);
                // This fails if the link is gone, and then nothing waits for it.
                let _ = done.send(peer);
            };
            Builder::new().name(format!("tcp to {peer}")).spawn(body).map_err(TcpError::thread)?;
            readers.push((peer, stream.try_clone().map_err(&broken)?));
            Ok(Some(Connection { stream, packets }))
        };
        let connections = connections.into_iter().enumerate().map(start).collect::<Result<_, _>>()?;
        let mesh = Arc::new(Self { mailbox, connections, written: Mutex::new(written) });
        for (peer, stream) in readers {
            let reader = Reader { peer, peers: mesh.clone(), sink: sink.clone() };
            let spawn = Builder::new().name(format!("tcp from {peer}"));
            spawn.spawn(move || reader.run(stream)).map_err(TcpError::thread)?;
        }
        Ok(mesh)
    }

    /// Announces a message whose tensors travel another way, by its frame. Sends nothing if the connection to that
    /// rank is lost: its reading thread reports the loss.
    pub fn offer(&self, to: usize, frame: Vec<u8>) {
        self.queue(to, Packet::Offer(frame));
    }

    /// Sends the transport's own bytes, like [`Mesh::offer`].
    pub fn note(&self, to: usize, bytes: Vec<u8>) {
        self.queue(to, Packet::Note(bytes));
    }

    /// Queues a packet. Drops it if the connection to that rank is gone: the reading thread reports that.
    fn queue(&self, to: usize, packet: Packet) {
        if let Some(Some(connection)) = self.connections.get(to) {
            let _ = connection.packets.send(packet);
        }
    }
}

impl Peers for Mesh {
    fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    fn send(&self, to: usize, envelope: Envelope, bodies: Vec<Bytes>) -> Result<(), LinkError> {
        self.queue(to, Packet::Envelope(envelope, bodies));
        Ok(())
    }

    /// Closes the link, and waits a short time for the remaining writes.
    fn close(&self) {
        self.send_all(&Envelope::Close);
        let written = self.written.lock();
        let since = Instant::now();
        let all = self.connections.iter().enumerate();
        let mut open: Vec<_> = all.filter_map(|(rank, connection)| Some((rank, connection.as_ref()?))).collect();
        while !open.is_empty() {
            match written.recv_timeout(FLUSH_TIMEOUT.saturating_sub(since.elapsed())) {
                Ok(peer) => open.retain(|&(rank, _)| rank != peer),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        for (_, connection) in open {
            // The peer does not read: this ends the writing thread.
            let _ = connection.stream.shutdown(Shutdown::Both);
        }
    }
}
