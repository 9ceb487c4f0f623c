//! A connection to every other rank, each with a reading and a writing thread.

use super::error::TcpError;
use super::packet::{Packet, Received, Sink};
use super::reader::Reader;
use super::writer::{Writers, write_all};
use crate::link::error::LinkError;
use crate::link::kit::endpoint::Peers;
use crate::link::kit::envelope::Envelope;
use crate::link::kit::mailbox::Mailbox;
use burn::tensor::Bytes;
use parking_lot::Mutex;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
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
    writers: Writers,
    streams: Vec<Option<TcpStream>>,
    /// Peers whose writing thread has ended.
    written: Mutex<Receiver<usize>>,
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
        let thread_error = |error: std::io::Error| TcpError::Thread(error.kind());
        let (mut writers, mut readers, mut streams) = (Writers::default(), Vec::new(), Vec::new());
        let (done, written) = channel();
        for (peer, connection) in connections.into_iter().enumerate() {
            let Some(stream) = connection else {
                writers.0.push(None);
                streams.push(None);
                continue;
            };
            let broken = |error: std::io::Error| TcpError::Broken { rank: peer, error: error.kind() };
            stream.set_nodelay(true).map_err(broken)?;
            let (packets, taken) = channel();
            let (outgoing, done) = (stream.try_clone().map_err(broken)?, done.clone());
            let body = move || {
                write_all(outgoing, &taken);
                // This fails if the link is gone, and then nothing waits for it.
                let _ = done.send(peer);
            };
            std::thread::Builder::new().name(format!("tcp to {peer}")).spawn(body).map_err(thread_error)?;
            readers.push((peer, stream.try_clone().map_err(broken)?));
            writers.0.push(Some(packets));
            streams.push(Some(stream));
        }
        let mesh = Arc::new(Self { mailbox, writers, streams, written: Mutex::new(written) });
        for (peer, stream) in readers {
            let reader = Reader { peer, peers: mesh.clone(), sink: sink.clone() };
            let spawn = std::thread::Builder::new().name(format!("tcp from {peer}"));
            spawn.spawn(move || reader.run(stream)).map_err(thread_error)?;
        }
        Ok(mesh)
    }

    /// Announces a message whose tensors travel another way, by its frame. Sends nothing if the connection to that
    /// rank is lost: its reading thread reports the loss.
    pub fn offer(&self, to: usize, frame: Vec<u8>) {
        self.writers.send(to, Packet::Offer(frame));
    }

    /// Sends the transport's own bytes, like [`Mesh::offer`].
    pub fn note(&self, to: usize, bytes: Vec<u8>) {
        self.writers.send(to, Packet::Note(bytes));
    }
}

impl Peers for Mesh {
    fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    fn send(&self, to: usize, envelope: Envelope, bodies: Vec<Bytes>) -> Result<(), LinkError> {
        self.writers.send(to, Packet::Envelope(envelope, bodies));
        Ok(())
    }

    /// Closes the link, and waits a short time for the remaining writes.
    fn close(&self) {
        self.send_all(&Envelope::Close);
        self.writers.others().for_each(|rank| self.writers.send(rank, Packet::End));
        let written = self.written.lock();
        let since = Instant::now();
        let mut open: Vec<usize> = self.writers.others().collect();
        while !open.is_empty() {
            match written.recv_timeout(FLUSH_TIMEOUT.saturating_sub(since.elapsed())) {
                Ok(peer) => open.retain(|&rank| rank != peer),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        for rank in open {
            if let Some(stream) = &self.streams[rank] {
                // The peer does not read: this ends the writing thread.
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }
}
