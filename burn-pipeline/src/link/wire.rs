//! A message as bytes: one small frame that says what comes, and the tensors' own bytes behind it.
//!
//! Guarantees: [`Packed::new`], then [`Frame::read`] and [`Frame::message`], gives the same message back: header,
//! form numbers, kinds, element types, shapes and every bit of every element, tensors without elements included. A
//! frame that was cut, lengthened or changed in any byte is refused with what is wrong, never a panic and never
//! another message. Tensors are read off their device once; a tensor that nobody else holds is not copied on the
//! way (its bytes are the ones that are sent, and the ones that arrive become the tensor).
//!
//! The frame, little-endian:
//!
//! 1. `bplk`, the version (2 bytes), the direction and the stage's replica (1 byte each);
//! 2. the stage (4 bytes), the number of parts (4), the microbatch (8), the stage at the other end of an edge past the
//!    next stage (8, else 0);
//! 3. the parts, in order: a form number (0, then 8 bytes), or a tensor (1, then kind, element type and number of
//!    dimensions, 1 byte each, then 8 bytes a dimension);
//! 4. a checksum over all of it (FNV-1a, 8 bytes).
//!
//! Tensors follow in the frame's order, which is their index; the frame gives each one's length. They carry no
//! checksum: the transports below are reliable, and a sum over activations would cost a pass over memory.
//!
//! A message that differs from an earlier one in its microbatch alone may travel under a [`Repeat`] instead: `bplr`,
//! the version (2 bytes), the number of what is repeated (2), the microbatch (8), the checksum (8). What numbers stand
//! for is for the transport to say: `link/repeats.rs`.

mod announce;
pub(super) mod codes;
mod offer;
mod reader;
mod repeat;

pub(crate) use codes::checksum;
pub use repeat::Repeat;

use super::wire_error::WireError;
use super::{Header, Message};
use crate::plan::StageId;
use crate::stage::{AnyTensor, Payload, PayloadPart, TensorKind};
use burn::tensor::{Bytes, DType, Device, TensorData};
use codes::{beyond, direction_code, direction_of, dtype_code, kind_code, wide};
use reader::Reader;
use std::sync::Arc;

const MAGIC: [u8; 4] = *b"bplk";
const REPEAT: [u8; 4] = *b"bplr";
/// The version of the frame's layout; ranks of different versions refuse each other.
pub const WIRE_VERSION: u16 = 2;
pub(super) const CHECKSUM: usize = size_of::<u64>();

/// A message that is ready to go: its frame, and the bytes of its tensors.
#[derive(Debug)]
pub struct Packed {
    /// The frame.
    pub frame: Vec<u8>,
    /// The bytes of each tensor, in the frame's order.
    pub bodies: Vec<Bytes>,
}

/// A frame that was read: what is to come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    header: Header,
    /// Shared by all messages that repeat it.
    parts: Arc<[Slot]>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Slot {
    Tag(usize),
    Tensor { kind: TensorKind, dtype: DType, shape: Vec<usize>, bytes: usize },
}

impl Packed {
    /// Reads the tensors off their device (waits for it) and writes the frame.
    ///
    /// # Errors
    /// If a tensor is quantised, cannot be read, or a number does not fit into a frame.
    pub fn new(message: Message) -> Result<Self, WireError> {
        let parts: Vec<PayloadPart> = message.payload.into_parts().collect();
        let mut frame = begin(message.header, parts.len())?;
        let mut bodies = Vec::new();
        for part in parts {
            match part {
                PayloadPart::Tag(form) => {
                    frame.push(0);
                    frame.extend(wide("form", form)?);
                }
                PayloadPart::Tensor(tensor) => bodies.push(write_tensor(&mut frame, tensor)?),
            }
        }
        frame.extend(checksum(&frame).to_le_bytes());
        Ok(Self { frame, bodies })
    }
}

/// All of a frame before its parts.
fn begin(header: Header, parts: usize) -> Result<Vec<u8>, WireError> {
    let Header { stage, microbatch, direction } = header;
    let mut frame = Vec::with_capacity(128);
    frame.extend(MAGIC);
    frame.extend(WIRE_VERSION.to_le_bytes());
    let (direction, from) = direction_code(direction);
    frame.extend([direction, stage.replica() as u8]);
    let count = u32::try_from(parts).map_err(|_| beyond("the number of parts", parts))?;
    frame.extend((stage.index() as u32).to_le_bytes());
    frame.extend(count.to_le_bytes());
    frame.extend(wide("microbatch", microbatch)?);
    frame.extend(wide("stage", from)?);
    Ok(frame)
}

fn write_tensor(frame: &mut Vec<u8>, tensor: AnyTensor) -> Result<Bytes, WireError> {
    let kind = tensor.kind();
    dtype_code(tensor.dtype())?;
    let data = tensor.into_data().map_err(|message| WireError::Device { message })?;
    describe(frame, kind, data.dtype(), data.shape())?;
    Ok(data.into_bytes())
}

fn describe(frame: &mut Vec<u8>, kind: TensorKind, dtype: DType, shape: &[usize]) -> Result<(), WireError> {
    let dims = u8::try_from(shape.len()).map_err(|_| beyond("the number of dimensions", shape.len()))?;
    frame.extend([1, kind_code(kind), dtype_code(dtype)?, dims]);
    for &size in shape {
        frame.extend(wide("size", size)?);
    }
    Ok(())
}

impl Frame {
    /// Reads a frame.
    ///
    /// # Errors
    /// If it is not one, of another version, or was changed.
    pub fn read(bytes: &[u8]) -> Result<Self, WireError> {
        if Repeat::is(bytes) {
            // For `Repeat::read`, and no frame by itself.
            return Err(WireError::Checksum);
        }
        let mut reader = Reader::verified(bytes)?;
        let [direction, replica] = reader.take("direction and replica")?;
        let index = u32::from_le_bytes(reader.take("the stage")?);
        if replica > 1 || index > u32::from(u16::MAX) {
            return Err(WireError::Field { what: "stage", value: u64::from(index) });
        }
        let stage = StageId::in_replica(usize::from(replica), index as usize);
        let count = u32::from_le_bytes(reader.take("the number of parts")?);
        let microbatch = reader.size("the microbatch")?;
        let direction = direction_of(direction, reader.size("the other stage")?)?;
        let parts = (0..count).map(|_| reader.part()).collect::<Result<_, _>>()?;
        reader.end().map(|()| Self { header: Header { stage, microbatch, direction }, parts })
    }

    /// The frame of the same message for another microbatch.
    pub fn for_microbatch(&self, microbatch: usize) -> Self {
        Self { header: Header { microbatch, ..self.header }, parts: self.parts.clone() }
    }

    /// What the message is about.
    pub fn header(&self) -> Header {
        self.header
    }

    /// The bytes of each tensor that is to come, in order.
    pub fn lengths(&self) -> impl Iterator<Item = usize> {
        self.parts.iter().filter_map(|slot| match slot {
            Slot::Tag(_) => None,
            Slot::Tensor { bytes, .. } => Some(*bytes),
        })
    }

    /// Memory for each tensor that is to come, in order, zeroed, of the right length and alignment.
    pub fn landings(&self) -> Vec<Bytes> {
        let landing = |slot: &Slot| match slot {
            Slot::Tag(_) => None,
            Slot::Tensor { dtype, bytes, .. } => Some(match dtype.size() {
                2 => Bytes::from_elems(vec![0u16; bytes / 2]),
                4 => Bytes::from_elems(vec![0u32; bytes / 4]),
                8 => Bytes::from_elems(vec![0u64; bytes / 8]),
                _ => Bytes::from_elems(vec![0u8; *bytes]),
            }),
        };
        self.parts.iter().filter_map(landing).collect()
    }

    /// The message, its tensors on `device`.
    ///
    /// # Errors
    /// If the bodies are not as long, or as many, as the frame announces.
    pub fn message(self, bodies: Vec<Bytes>, device: &Device) -> Result<Message, WireError> {
        let mut bodies = bodies.into_iter().enumerate();
        let mut payload = Payload::default();
        let mut tensors = 0;
        for slot in self.parts.iter() {
            match slot {
                Slot::Tag(form) => payload.push_tag(*form),
                Slot::Tensor { dtype, shape, bytes, .. } => {
                    let (dtype, bytes) = (*dtype, *bytes);
                    let (index, body) =
                        bodies.next().ok_or(WireError::Body { index: tensors, got: 0, expected: bytes })?;
                    let wrong = WireError::Body { index, got: body.len(), expected: bytes };
                    let data = TensorData::try_from_bytes(body, shape.clone(), dtype).map_err(|_| wrong)?;
                    payload.push_tensor(AnyTensor::from_data_exact(data, device));
                    tensors += 1;
                }
            }
        }
        match bodies.next() {
            None => Ok(Message { header: self.header, payload }),
            Some((index, body)) => Err(WireError::Body { index, got: body.len(), expected: 0 }),
        }
    }
}
