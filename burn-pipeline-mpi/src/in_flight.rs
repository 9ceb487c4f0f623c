//! A transfer in flight, with the memory that it reads or writes.
//!
//! MPI's nonblocking calls use memory until they are complete. A borrow cannot express that here: transfers begin
//! in one turn of the progress thread and end in a later one. So a transfer owns its bytes. It returns them when it
//! is complete; one without bytes is complete at once. If it is dropped before it is complete, it leaks them, because
//! MPI may still write there. This is the only file of the crate with `unsafe`.

use burn::tensor::Bytes;
use mpi::Tag;
use mpi::point_to_point::{Destination, Message, Source};
use mpi::request::{Request, StaticScope};
use std::mem::forget;

/// The longest piece. MPI counts elements with 31 bits, so longer bodies are sent in pieces.
const LONGEST: usize = 1 << 30;

/// The number of transfers for this many bytes.
pub(crate) fn pieces(bytes: usize) -> usize {
    bytes.div_ceil(LONGEST)
}

type Piece = Request<'static, [u8], StaticScope>;

/// A transfer in flight.
pub(crate) struct InFlight {
    pieces: Vec<Piece>,
    bytes: Option<Bytes>,
}

impl InFlight {
    /// Starts to send all bytes.
    pub(crate) fn send(to: &impl Destination, tag: Tag, bytes: Bytes) -> Self {
        // SAFETY: `bytes` moves into the transfer, which moves the handle and not the memory behind it, does not
        // touch it, and frees it only after MPI has reported every piece as complete; if the transfer is dropped
        // before that, it leaks the memory. So the memory outlives MPI's use of it.
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

    /// Starts to receive as many bytes as the buffer holds.
    pub(crate) fn receive(from: &impl Source, tag: Tag, mut bytes: Bytes) -> Self {
        // SAFETY: as in `InFlight::send`. The transfer owns the handle, so nothing else reads or writes the memory
        // until the transfer is complete.
        let memory = unsafe { borrowed(&mut bytes) };
        let start = |piece| from.immediate_receive_into_with_tag(StaticScope, piece, tag);
        Self { pieces: memory.chunks_mut(LONGEST).map(start).collect(), bytes: Some(bytes) }
    }

    /// Starts to receive a message that a probe has found, and that is as long as the buffer.
    pub(crate) fn matched(message: Message, mut bytes: Bytes) -> Self {
        // SAFETY: as in `InFlight::send`. The transfer owns the handle, so nothing else reads or writes the memory
        // until the transfer is complete.
        let memory = unsafe { borrowed(&mut bytes) };
        Self { pieces: vec![message.immediate_matched_receive_into(StaticScope, memory)], bytes: Some(bytes) }
    }

    /// Returns true if it is complete.
    pub(crate) fn is_complete(&mut self) -> bool {
        while let Some(piece) = self.pieces.pop() {
            if let Err(piece) = piece.test() {
                self.pieces.push(piece);
                return false;
            }
        }
        true
    }

    /// Returns its bytes if it is complete; otherwise it is dropped, and they leak.
    pub(crate) fn finish(mut self) -> Option<Bytes> {
        if self.is_complete() { self.bytes.take() } else { None }
    }
}

/// # Safety
/// The memory outlives every use of the result, and nothing else reads or writes it during that time.
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
