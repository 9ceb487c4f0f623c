//! Frames with the right version and checksum around any content.

use burn_pipeline::link::kit::{Packed, Repeat};
use burn_pipeline::link::{Header, Message, MessageKind};
use burn_pipeline::payload::Payload;

/// The start of every frame: its magic and the version.
const BEGIN: usize = 6;
/// The checksum at its end.
const END: usize = 4;

/// A message's frame with this content.
///
/// # Panics
/// Never: an empty message can be packed.
pub fn frame(content: &[u8]) -> Vec<u8> {
    let message = Message { header: Header::of(MessageKind::Timing), payload: Payload::default() };
    around(content, &Packed::new(message).expect("an empty message can be packed").frame)
}

/// A repetition's frame with this content.
///
/// # Panics
/// Never: a repetition can be written.
pub fn repeat(content: &[u8]) -> Vec<u8> {
    around(content, &Repeat { number: 0, microbatch: 0 }.write().expect("a repetition can be written"))
}

fn around(content: &[u8], sound: &[u8]) -> Vec<u8> {
    let signed = [&sound[..BEGIN], content].concat();
    let sum = crc32fast::hash(&signed);
    [&signed[..], &sum.to_le_bytes()].concat()
}

/// The content of a frame, or `None` if it is too short.
pub fn content(frame: &[u8]) -> Option<&[u8]> {
    frame.get(BEGIN..frame.len().checked_sub(END)?)
}

/// Corrects the start and the end of a frame.
pub fn mend(bytes: &mut [u8]) {
    if let Some(mended) = content(bytes).map(frame) {
        bytes.copy_from_slice(&mended);
    }
}
