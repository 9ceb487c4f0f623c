//! The short frame of a message that differs from an earlier one in its microbatch alone.

use super::codes::wide;
use super::reader::Reader;
use super::{REPEAT, WIRE_VERSION, WireError, checksum};

/// The frame of a message that repeats an earlier one, but for its microbatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repeat {
    /// What is repeated.
    pub number: u16,
    /// The microbatch.
    pub microbatch: usize,
}

impl Repeat {
    /// Do bytes begin as a repetition does?
    pub fn is(bytes: &[u8]) -> bool {
        bytes.starts_with(&REPEAT)
    }

    /// As bytes.
    ///
    /// # Errors
    /// If the microbatch does not fit into a frame.
    pub fn write(self) -> Result<Vec<u8>, WireError> {
        let mut bytes = Vec::with_capacity(24);
        bytes.extend(REPEAT);
        bytes.extend(WIRE_VERSION.to_le_bytes());
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(wide("microbatch", self.microbatch)?);
        bytes.extend(checksum(&bytes).to_le_bytes());
        Ok(bytes)
    }

    /// From bytes; `None` if they begin as a whole frame does, or as nothing that is known.
    ///
    /// # Errors
    /// If they are changed, cut, or of another version.
    pub fn read(bytes: &[u8]) -> Result<Option<Self>, WireError> {
        if !Self::is(bytes) {
            return Ok(None);
        }
        let mut reader = Reader::verified(bytes)?;
        let number = u16::from_le_bytes(reader.take("the number")?);
        let microbatch = reader.size("the microbatch")?;
        reader.end().map(|()| Some(Self { number, microbatch }))
    }
}
