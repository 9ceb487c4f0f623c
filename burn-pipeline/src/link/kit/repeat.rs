//! The short frame of a message that differs from an earlier one only in its microbatch.

use super::sealed::{open, seal};
use crate::link::wire_error::WireError;
use serde::{Deserialize, Serialize};

const MAGIC: [u8; 4] = *b"bplr";

/// The frame of a message that repeats an earlier one except for its microbatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repeat {
    /// The number of the repeated message; the transport defines the numbers.
    pub number: u16,
    /// The microbatch.
    pub microbatch: usize,
}

impl Repeat {
    /// Returns true if the bytes begin like a repeat frame.
    pub fn is(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    /// The frame as bytes.
    ///
    /// # Errors
    /// Returns [`WireError`] if it cannot be encoded.
    pub fn write(self) -> Result<Vec<u8>, WireError> {
        seal(MAGIC, &self)
    }

    /// Reads a frame; `None` if the bytes begin with something else, such as a whole [`Frame`](super::Frame).
    ///
    /// # Errors
    /// Returns [`WireError`] if the bytes were changed or cut, or have another version.
    pub fn read(bytes: &[u8]) -> Result<Option<Self>, WireError> {
        if Self::is(bytes) { open(MAGIC, bytes).map(Some) } else { Ok(None) }
    }
}
