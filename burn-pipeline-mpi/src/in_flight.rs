//! A transfer that is in flight, together with the memory that it reads or writes.
//!
//! MPI's nonblocking calls use memory until they are complete. No borrow can express that here: transfers begin in one
//! turn of the progress thread and end in a later one. So a transfer owns its bytes. They are given back when it is
//! complete, and leaked if it is dropped before, because MPI may still write there. This is the only file of the crate
//! with `unsafe`.

use burn::tensor::Bytes;
use mpi::Tag;
use mpi::point_to_point::{Destination, Message, Source};
use mpi::request::{Request, StaticScope};
use std::mem::forget;

/// MPI counts elements with 31 bits: longer bodies are sent in pieces.
const LONGEST: usize = 1 << 30;

/// The number of transfers that this many bytes take.
pub(crate) fn pieces(bytes: usize) -> usize {
    bytes.div_ceil(LONGEST)
}

type Piece = Request<'static, [u8], StaticScope>;

/// A transfer that is in flight.
pub(crate) struct InFlight {
    pieces: Vec<Piece>,
    bytes: Option<Bytes>,
}

impl InFlight {
    /// Starts to send all bytes.
    pub(crate) fn send(to: &impl Destination, tag: Tag, bytes: Bytes) -> Self {
        // SAFETY: `bytes` moves into the transfer, which moves the handle and not the memory behind it, is not
        // touched there, and is freed only after MPI has said that every piece is complete; if the transfer is
        // dropped before that, it is leaked. So the memory outlives every use that MPI makes of it.
        let memory: &'static [u8] = unsafe { std::slice::from_raw_parts(bytes.as_ptr(), bytes.len()) };
        let start = |piece| to.immediate_send_with_tag(StaticScope, piece, tag);
        Self { pieces: memory.chunks(LONGEST).map(start).collect(), bytes: Some(bytes) }
    }

    /// Sends an empty message, which completes a receive that would otherwise never complete.
    pub(crate) fn send_nothing(to: &impl Destination, tag: Tag) -> Self {
        let nothing: &'static [u8] = &[];
        Self {
            pieces: vec![to.immediate_send_with_tag(StaticScope, nothing, tag)],
            bytes: Some(Bytes::from_elems(Vec::<u8>::new())),
        }
    }

    /// Starts to receive as many bytes as there is memory for.
    pub(crate) fn receive(from: &impl Source, tag: Tag, mut bytes: Bytes) -> Self {
        // SAFETY: as in `InFlight::send`; and nothing else reads or writes the memory until the transfer is complete, since the handle is
        // inside the transfer until then.
        let memory = unsafe { borrowed(&mut bytes) };
        let start = |piece| from.immediate_receive_into_with_tag(StaticScope, piece, tag);
        Self { pieces: memory.chunks_mut(LONGEST).map(start).collect(), bytes: Some(bytes) }
    }

    /// Starts to receive a message that a probe has found, which is as long as the memory.
    pub(crate) fn matched(message: Message, mut bytes: Bytes) -> Self {
        // SAFETY: as in `InFlight::send`; and nothing else reads or writes the memory until the transfer is complete, since the handle is
        // inside the transfer until then.
        let memory = unsafe { borrowed(&mut bytes) };
        Self { pieces: vec![message.immediate_matched_receive_into(StaticScope, memory)], bytes: Some(bytes) }
    }

    /// Its bytes if it is complete, else itself.
    pub(crate) fn finish(mut self) -> Result<Bytes, Self> {
        while let Some(piece) = self.pieces.pop() {
            if let Err(piece) = piece.test() {
                self.pieces.push(piece);
                return Err(self);
            }
        }
        // The bytes are always there: only this function takes them, and it consumes the transfer.
        self.bytes.take().ok_or(self)
    }
}

/// # Safety
/// The memory outlives every use that is made of it, and nothing else reads or writes it as long as it is used.
unsafe fn borrowed(bytes: &mut Bytes) -> &'static mut [u8] {
    let (start, length) = (bytes.as_mut_ptr(), bytes.len());
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(start, length) }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if !self.pieces.is_empty() {
            self.pieces.drain(..).for_each(forget);
            forget(self.bytes.take());
        }
    }
}
