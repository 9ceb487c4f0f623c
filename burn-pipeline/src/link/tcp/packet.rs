//! What travels on one connection, and the thread that writes it.
//!
//! A packet is one byte for its kind, its length (4 bytes, little-endian) and that many bytes. The bytes of a
//! message's tensors follow its frame, with the lengths that the frame announces.

use crate::link::kit::envelope::Envelope;
use crate::link::kit::frame::Frame;
use burn::tensor::Bytes;
use std::io::{BufWriter, Error, ErrorKind, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::Receiver;

/// The longest packet that a rank sends.
pub(super) const LONGEST: usize = 1 << 30;

/// What a rank sends.
#[derive(Debug)]
pub(super) enum Packet {
    /// An envelope, and a message's tensors after it.
    Envelope(Envelope, Vec<Bytes>),
    /// The frame of a message whose tensors travel another way.
    Offer(Vec<u8>),
    /// Bytes of the transport that uses the connection.
    Note(Vec<u8>),
}

/// What a rank receives, except what the mailbox handles itself.
#[derive(Debug)]
pub enum Received {
    /// A message, with its tensors.
    Message(Frame, Vec<Bytes>),
    /// The frame of a message whose tensors travel another way.
    Offer(Frame),
    /// Bytes of the transport that uses the connection.
    Note(Vec<u8>),
}

/// Takes what a rank sent, in order.
pub(super) type Sink = dyn Fn(usize, Received) + Send + Sync;

fn write(out: &mut impl Write, packet: Packet) -> Result<(), Error> {
    let (kind, bytes, bodies) = match packet {
        Packet::Envelope(envelope, bodies) => (0, envelope.write(), bodies),
        Packet::Offer(frame) => (1, frame, Vec::new()),
        Packet::Note(note) => (2, note, Vec::new()),
    };
    // The other end would refuse a longer packet, and 4 bytes could not hold its length.
    let length = u32::try_from(bytes.len()).ok().filter(|_| bytes.len() <= LONGEST);
    let length = length.ok_or_else(|| Error::new(ErrorKind::InvalidInput, "it is longer than 1 GiB"))?;
    out.write_all(&[kind])?;
    out.write_all(&length.to_le_bytes())?;
    out.write_all(&bytes)?;
    bodies.iter().try_for_each(|body| out.write_all(body))
}

/// The body of a writing thread; runs until it has written [`Envelope::Close`], the connection ends, or all senders are
/// gone.
pub(super) fn write_all(stream: TcpStream, packets: &Receiver<Packet>) {
    let mut out = BufWriter::with_capacity(1 << 16, &stream);
    while let Ok(first) = packets.recv() {
        let mut next = Some(first);
        while let Some(packet) = next {
            let closes = matches!(packet, Packet::Envelope(Envelope::Close, _));
            // The reading threads of this connection report that it is gone.
            if let Err(error) = write(&mut out, packet) {
                tracing::error!(%error, "a message could not be sent");
                let _ = stream.shutdown(Shutdown::Both);
                return;
            }
            if closes {
                let _ = out.flush();
                let _ = stream.shutdown(Shutdown::Write);
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
