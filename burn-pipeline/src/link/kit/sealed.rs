//! Short byte strings with a checksum: four bytes of magic, the version (2 bytes, little-endian), a value in
//! postcard's encoding, and a CRC-32 over all of it (4 bytes, little-endian).
//!
//! Guarantees: bytes that were cut, lengthened or changed are refused, without a panic.

use crate::link::wire_error::{WIRE_VERSION, WireError};
use serde::Serialize;
use serde::de::DeserializeOwned;

const CHECKSUM: usize = size_of::<u32>();

/// A value as sealed bytes.
pub(super) fn seal(magic: [u8; 4], value: &impl Serialize) -> Result<Vec<u8>, WireError> {
    let mut bytes = Vec::with_capacity(64);
    bytes.extend(magic);
    bytes.extend(WIRE_VERSION.to_le_bytes());
    let mut bytes = postcard::to_extend(value, bytes).map_err(encoding)?;
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    Ok(bytes)
}

/// The value in sealed bytes.
pub(super) fn open<T: DeserializeOwned>(magic: [u8; 4], bytes: &[u8]) -> Result<T, WireError> {
    let (content, checksum) = bytes.split_last_chunk::<CHECKSUM>().ok_or(WireError::Checksum)?;
    let rest = content.strip_prefix(&magic).ok_or(WireError::Checksum)?;
    let (version, value) = rest.split_first_chunk().ok_or(WireError::Checksum)?;
    if crc32fast::hash(content).to_le_bytes() != *checksum {
        return Err(WireError::Checksum);
    }
    // Check the version first, so that ranks of two versions do not report a broken frame.
    match u16::from_le_bytes(*version) {
        WIRE_VERSION => {}
        got => return Err(WireError::Version { got }),
    }
    match postcard::take_from_bytes(value).map_err(encoding)? {
        (value, []) => Ok(value),
        (_, left) => Err(encoding(format!("{} bytes are left over", left.len()))),
    }
}

fn encoding(error: impl std::fmt::Display) -> WireError {
    WireError::Encoding { message: format!("{error}; build all ranks from one version") }
}
