//! What travels on one connection.
//!
//! A packet is one byte for its kind, its length (4 bytes, little-endian) and that many bytes. The bytes of a
//! message's tensors follow its frame, with the lengths that the frame announces.

use crate::link::kit::envelope::Envelope;
use crate::link::kit::frame::Frame;
use burn::tensor::Bytes;
use std::io::{Error, ErrorKind, Write};

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
    /// The end: the writing thread stops.
    End,
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

pub(super) fn write(out: &mut impl Write, packet: Packet) -> Result<(), Error> {
    let (kind, bytes, bodies) = match packet {
        Packet::Envelope(envelope, bodies) => (0, envelope.write(), bodies),
        Packet::Offer(frame) => (1, frame, Vec::new()),
        Packet::Note(note) => (2, note, Vec::new()),
        Packet::End => return Ok(()),
    };
    // The other end would refuse a longer packet, and 4 bytes could not hold its length.
    let length = u32::try_from(bytes.len()).ok().filter(|_| bytes.len() <= LONGEST);
    let length = length.ok_or_else(|| Error::new(ErrorKind::InvalidInput, "it is longer than 1 GiB"))?;
    out.write_all(&[kind])?;
    out.write_all(&length.to_le_bytes())?;
    out.write_all(&bytes)?;
    bodies.iter().try_for_each(|body| out.write_all(body))
}
