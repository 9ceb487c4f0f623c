//! A checksum of a batch's contents, with which processes compare their batches.

use super::microbatches::Microbatches;
use super::split::Cuttable;
use crate::payload::PayloadPart;

impl Microbatches {
    /// CRC-32 of names, tags, plain values, and every tensor's element type, shape and values, read from its device.
    ///
    /// # Errors
    /// Returns the device's message if a device cannot be read.
    pub(crate) fn checksum(&self) -> Result<u32, String> {
        let mut hasher = crc32fast::Hasher::new();
        for batch in self.wholes() {
            let extras = batch.extras.iter().map(|(name, extra)| (name.as_str(), extra));
            let target = batch.target.iter().map(|target| ("target", target));
            for (name, part) in [("input", &batch.input)].into_iter().chain(target).chain(extras) {
                hasher.update(name.as_bytes());
                add(&mut hasher, part)?;
            }
        }
        Ok(hasher.finalize())
    }
}

fn add(hasher: &mut crc32fast::Hasher, part: &Cuttable) -> Result<(), String> {
    for part in part.payload.parts() {
        match part {
            PayloadPart::Host(value) => hasher.update(value.to_string().as_bytes()),
            PayloadPart::Tag(tag) => hasher.update(&(*tag as u64).to_le_bytes()),
            PayloadPart::Tensor(tensor) => tensor.add_to(hasher)?,
        }
    }
    Ok(())
}
