//! Gathering bytes over a link that gathers numbers: every rank gets the bytes of every rank.
//!
//! Four bytes travel in one number (whole numbers below 2^53 are exact), after the length. Reports and handshakes
//! are small and rare, so that twice their size costs nothing, and no link has to offer a second gather.

use super::{Link, LinkError};
use std::time::Instant;

/// Gives every rank the bytes of every rank, in rank order. All ranks must call it, in the same order.
///
/// # Errors
/// As [`Link::all_gather`].
pub fn all_gather_bytes(link: &mut dyn Link, bytes: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>, LinkError> {
    let table = link.all_gather(pack(bytes), deadline)?;
    Ok(table.iter().map(|row| unpack(row)).collect())
}

pub(super) fn pack(bytes: &[u8]) -> Vec<f64> {
    let word = |chunk: &[u8]| chunk.iter().rev().fold(0u32, |word, &byte| word << 8 | u32::from(byte));
    std::iter::once(bytes.len() as f64).chain(bytes.chunks(4).map(|chunk| f64::from(word(chunk)))).collect()
}

pub(super) fn unpack(row: &[f64]) -> Vec<u8> {
    let Some((&length, words)) = row.split_first() else { return Vec::new() };
    let mut bytes: Vec<u8> = words.iter().flat_map(|&word| (word as u32).to_le_bytes()).collect();
    bytes.truncate(length as usize);
    bytes
}
