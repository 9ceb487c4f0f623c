//! The frame of a message: a few bytes that describe the message and the tensors that follow.
//!
//! Guarantees: a frame that is written and read again has the same header, tags, element types and shapes. A frame
//! that was cut, lengthened or changed in any byte is refused with the reason, without a panic.
//!
//! 1. A frame is sealed bytes: magic (`bplk`, or `bplr` if it repeats another), the version (2 bytes, little-endian),
//!    the header and the parts in postcard's encoding, and a CRC-32 over all of it (4 bytes, little-endian).
//! 2. A part is a tag of the payload's structure, a plain value, or a tensor's element type and shape.
//! 3. The bytes of the tensors follow the frame, in its order ([`Packed`](super::Packed)). They have no checksum:
//!    the transports are reliable, and a checksum of activations would cost a pass over memory.

use crate::link::header::{Header, Message};
use crate::link::wire_error::{WIRE_VERSION, WireError};
use crate::payload::{HostValue, PayloadPart};
use burn::tensor::DType;
use burn::tensor::quantization::QuantScheme;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

const MAGIC: [u8; 4] = *b"bplk";
const REPEAT_MAGIC: [u8; 4] = *b"bplr";
const CHECKSUM: usize = size_of::<u32>();

/// What a message is about, and which tensors it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    header: Header,
    /// Shared by all messages that repeat this one.
    pub(super) parts: Arc<[FramePart]>,
}

/// A part of a payload, without the elements of its tensors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum FramePart {
    Tag(usize),
    Tensor { dtype: DType, shape: Vec<usize> },
    Host(HostValue),
}

impl FramePart {
    /// Describes a tensor that can cross a link.
    pub(super) fn tensor(dtype: DType, shape: Vec<usize>) -> Result<Self, WireError> {
        if matches!(dtype, DType::QFloat(_)) {
            return Err(WireError::Quantised { dtype });
        }
        // More than `isize::MAX` bytes cannot be allocated.
        match shape.iter().try_fold(dtype.size(), |bytes, &size| bytes.checked_mul(size)) {
            Some(bytes) if bytes <= isize::MAX as usize => Ok(Self::Tensor { dtype, shape }),
            _ => Err(WireError::TooLarge { shape: shape.iter().map(|&size| size as u64).collect() }),
        }
    }
}

impl Frame {
    pub(super) fn new(header: Header, parts: Vec<FramePart>) -> Self {
        Self { header, parts: parts.into() }
    }

    /// The frame of a message, made without reading its tensors.
    ///
    /// # Errors
    /// Returns [`WireError`] if a tensor is quantised.
    pub fn of(message: &Message) -> Result<Self, WireError> {
        let parts = message.payload.parts().map(|part| match part {
            PayloadPart::Tag(tag) => Ok(FramePart::Tag(*tag)),
            PayloadPart::Host(value) => Ok(FramePart::Host(value.clone())),
            PayloadPart::Tensor(tensor) => FramePart::tensor(tensor.dtype(), tensor.shape().to_vec()),
        });
        Ok(Self::new(message.header, parts.collect::<Result<_, _>>()?))
    }

    /// The frame as bytes.
    ///
    /// # Errors
    /// Returns [`WireError`] if it cannot be encoded.
    pub fn write(&self) -> Result<Vec<u8>, WireError> {
        seal(MAGIC, &(self.header, &*self.parts))
    }

    /// Reads a frame.
    ///
    /// # Errors
    /// Returns [`WireError`] if the bytes are not a frame, were changed or cut, have another version, or announce a
    /// tensor that cannot exist.
    pub fn read(bytes: &[u8]) -> Result<Self, WireError> {
        let (header, parts): (Header, Vec<FramePart>) = open(MAGIC, bytes)?;
        let checked = parts.into_iter().map(|part| match part {
            // Not the received scheme: Burn panics when it prints an invalid one.
            FramePart::Tensor { dtype: DType::QFloat(_), .. } => {
                Err(WireError::Quantised { dtype: DType::QFloat(QuantScheme::default()) })
            }
            FramePart::Tensor { dtype, shape } => FramePart::tensor(dtype, shape),
            other => Ok(other),
        });
        Ok(Self::new(header, checked.collect::<Result<_, _>>()?))
    }

    /// The frame of the same message for another microbatch.
    pub fn for_microbatch(&self, microbatch: usize) -> Self {
        Self { header: Header { microbatch, ..self.header }, parts: self.parts.clone() }
    }

    /// What the message is about.
    pub fn header(&self) -> Header {
        self.header
    }

    /// Element type and shape of each tensor, in order.
    pub fn tensors(&self) -> impl Iterator<Item = (DType, &[usize])> {
        self.parts.iter().filter_map(|part| match part {
            FramePart::Tag(_) | FramePart::Host(_) => None,
            FramePart::Tensor { dtype, shape } => Some((*dtype, shape.as_slice())),
        })
    }

    /// The length of each tensor in bytes, in order.
    pub fn lengths(&self) -> impl Iterator<Item = usize> {
        self.tensors().map(|(dtype, shape)| shape.iter().product::<usize>() * dtype.size())
    }
}

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
        bytes.starts_with(&REPEAT_MAGIC)
    }

    /// The frame as bytes.
    ///
    /// # Errors
    /// Returns [`WireError`] if it cannot be encoded.
    pub fn write(self) -> Result<Vec<u8>, WireError> {
        seal(REPEAT_MAGIC, &self)
    }

    /// Reads a frame; `None` if the bytes begin with something else, such as a whole [`Frame`].
    ///
    /// # Errors
    /// Returns [`WireError`] if the bytes were changed or cut, or have another version.
    pub fn read(bytes: &[u8]) -> Result<Option<Self>, WireError> {
        if Self::is(bytes) { open(REPEAT_MAGIC, bytes).map(Some) } else { Ok(None) }
    }
}

/// A value as sealed bytes.
fn seal(magic: [u8; 4], value: &impl Serialize) -> Result<Vec<u8>, WireError> {
    let mut bytes = Vec::with_capacity(64);
    bytes.extend(magic);
    bytes.extend(WIRE_VERSION.to_le_bytes());
    let mut bytes = postcard::to_extend(value, bytes).map_err(encoding)?;
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    Ok(bytes)
}

/// The value in sealed bytes.
fn open<T: DeserializeOwned>(magic: [u8; 4], bytes: &[u8]) -> Result<T, WireError> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::header::MessageKind;
    use crate::link::kit::Packed;
    use crate::payload::{Boundary, Payload, PayloadSpec};
    use burn::tensor::{Device, Int, Tensor};
    use burn_pipeline_plan::plan::StageId;

    fn header() -> Header {
        Header { stage: StageId::new(3), microbatch: 0, kind: MessageKind::SkipGradient { from: 5 } }
    }

    fn payload() -> Payload {
        let x = Tensor::<2>::from_floats([[1.0, -2.5], [0.0, 4.0]], &Device::flex());
        let ids = Tensor::<1, Int>::from_ints([3, -1], &Device::flex());
        (Some(x), None::<Tensor<1>>, vec![ids.clone()], ids.greater_elem(0)).into_payload()
    }

    #[test]
    fn the_frame_is_the_same_before_and_after_the_message_is_packed() {
        let (header, payload) = (Header { microbatch: 5, ..header() }, payload());
        let message = Message { header, payload };
        let frame = Frame::of(&message).unwrap();
        assert_eq!(Packed::new(message.clone()).unwrap().frame, frame.write().unwrap());
        let tensors: Vec<_> = message.payload.tensors().map(|t| (t.dtype(), t.shape().to_vec())).collect();
        assert_eq!(frame.tensors().map(|(dtype, shape)| (dtype, shape.to_vec())).collect::<Vec<_>>(), tensors);
    }

    #[test]
    fn a_payload_is_put_together_from_a_frame_and_tensors() {
        let message = Message { header: header(), payload: payload() };
        let tensors = message.payload.tensors().cloned().collect();
        let back = Frame::of(&message).unwrap().with_tensors(tensors);
        assert_eq!(PayloadSpec::of_payload(&back), PayloadSpec::of_payload(&message.payload));
        let read = |payload: &Payload| payload.tensors().map(|t| t.to_data().unwrap()).collect::<Vec<_>>();
        assert_eq!(read(&back), read(&message.payload));
    }

    #[test]
    fn a_quantised_tensor_is_refused_whatever_its_scheme_says() {
        // Blocks of more dimensions than possible.
        let content = [
            11, 7, 0, 0, 8, 4, 1, 14, 0, 0, 0, 0, 1, 241, 14, 46, 11, 183, 7, 1, 4, 0, 1, 0, 4, 1, 1, 4, 0, 1, 0, 4, 1,
            3, 1, 3, 1, 8, 3, 255, 255, 255, 255, 4, 77, 2,
        ];
        let mut bytes = [&MAGIC[..], &crate::link::wire_error::WIRE_VERSION.to_le_bytes(), &content].concat();
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        assert!(Frame::read(&bytes).unwrap_err().to_string().contains("dequantise"));
    }
}
