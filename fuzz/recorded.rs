//! Rank 0's end of a link whose other ranks send recorded messages.

use burn::tensor::{Bytes, Device};
use burn_pipeline::link::LinkError;
use burn_pipeline::link::kit::{Endpoint, Envelope, Frame, Mailbox, Peers};
use std::ops::Deref;
use std::sync::Arc;

/// An envelope, and the bytes of a message's tensors.
pub type RecordedMessage = (Envelope, Vec<Vec<u8>>);

/// The other ranks. What is sent to them is dropped.
#[derive(Debug)]
pub struct RecordedPeers(Mailbox);

impl Peers for RecordedPeers {
    fn mailbox(&self) -> &Mailbox {
        &self.0
    }

    fn send(&self, _: usize, _: Envelope, _: Vec<Bytes>) -> Result<(), LinkError> {
        Ok(())
    }

    fn close(&self) {}
}

/// The other ranks, before their first message.
pub fn ranks(ranks: usize) -> Arc<RecordedPeers> {
    Arc::new(RecordedPeers(Mailbox::new(0, ranks)))
}

/// Rank 0's end, after rank 1 has sent these messages and left.
pub fn link(ranks: usize, messages: &[RecordedMessage]) -> Endpoint<RecordedPeers> {
    let peers = self::ranks(ranks);
    for (envelope, bodies) in messages {
        give(&peers.0, 1, envelope.clone(), bodies);
    }
    peers.0.handle(1, Envelope::Close);
    Endpoint::new(peers, Device::flex())
}

/// Delivers what a transport reads, and returns what is to be sent back. Tensors whose bytes are missing are zeros.
pub fn give<B: Deref<Target = [u8]>>(
    mailbox: &Mailbox,
    from: usize,
    envelope: Envelope,
    bodies: &[B],
) -> Option<Envelope> {
    let Envelope::Message(frame) = envelope else { return mailbox.handle(from, envelope) };
    match Frame::read(&frame).and_then(|frame| Ok((frame.buffers()?, frame))) {
        Ok((mut buffers, frame)) => {
            for (buffer, body) in buffers.iter_mut().zip(bodies) {
                let length = buffer.len().min(body.len());
                buffer[..length].copy_from_slice(&body[..length]);
            }
            mailbox.deliver(from, (frame, buffers));
        }
        Err(source) => mailbox.break_off(LinkError::Wire { rank: mailbox.rank, peer: from, source }),
    }
    mailbox.wake();
    None
}
