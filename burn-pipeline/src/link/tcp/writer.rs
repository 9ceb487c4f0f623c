//! The writing threads, one for each connection, and their queues.

use super::packet::{Packet, write};
use std::io::{BufWriter, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, Sender};

/// The queues to all other ranks.
#[derive(Debug, Default)]
pub(super) struct Writers(pub(super) Vec<Option<Sender<Packet>>>);

impl Writers {
    /// Queues a packet. Drops it if the connection to that rank is gone: the reading thread reports that.
    pub(super) fn send(&self, to: usize, packet: Packet) {
        if let Some(Some(writer)) = self.0.get(to) {
            let _ = writer.send(packet);
        }
    }

    pub(super) fn others(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().filter_map(|(rank, writer)| writer.as_ref().map(|_| rank))
    }
}

/// The body of a writing thread; runs until the link or the connection ends.
pub(super) fn write_all(stream: TcpStream, packets: &Receiver<Packet>) {
    let mut out = BufWriter::with_capacity(1 << 16, &stream);
    while let Ok(first) = packets.recv() {
        let mut next = Some(first);
        while let Some(packet) = next {
            if matches!(packet, Packet::End) {
                let _ = out.flush();
                let _ = stream.shutdown(Shutdown::Write);
                return;
            }
            // The reading threads of this connection report that it is gone.
            if let Err(error) = write(&mut out, packet) {
                tracing::error!(%error, "a message could not be sent");
                let _ = stream.shutdown(Shutdown::Both);
                return;
            }
            next = packets.try_recv().ok();
        }
        // Nothing more is queued: the buffer's content must not wait for the next packet.
        if out.flush().is_err() {
            return;
        }
    }
}
