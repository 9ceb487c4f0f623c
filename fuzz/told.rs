//! Rank 0's end of a link to ranks that have told it all that they ever will.

use burn::tensor::{Bytes, Device};
use burn_pipeline::link::LinkError;
use burn_pipeline::link::kit::{Endpoint, Envelope, Frame, Mailbox, Peers};
use std::ops::Deref;
use std::sync::Arc;

/// An envelope, and the bytes of a message's tensors behind it.
pub type Said = (Envelope, Vec<Vec<u8>>);

/// The other ranks: what they are told is lost.
#[derive(Debug)]
pub struct Told(Mailbox);

impl Peers for Told {
    fn mailbox(&self) -> &Mailbox {
        &self.0
    }

    fn send(&self, _: usize, _: Envelope, _: Vec<Bytes>) -> Result<(), LinkError> {
        Ok(())
    }

    fn close(&self) {}
}

/// The other ranks, of which none has told anything yet.
pub fn ranks(ranks: usize) -> Arc<Told> {
    Arc::new(Told(Mailbox::new(0, ranks)))
}

/// Rank 0's end, when rank 1 of these has said this and left.
pub fn link(ranks: usize, said: &[Said]) -> Endpoint<Told> {
    let told = self::ranks(ranks);
    for (envelope, bodies) in said {
        give(&told.0, 1, envelope.clone(), bodies);
    }
    told.0.handle(1, Envelope::Close);
    Endpoint::new(told, Device::flex())
}

/// What a transport does with what it reads; what is to be sent back. Tensors for which no bytes came are zeros.
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
            mailbox.deliver(None, from, (frame, buffers));
        }
        Err(source) => mailbox.break_off(LinkError::Wire { rank: mailbox.rank, peer: from, source }),
    }
    mailbox.wake();
    None
}
