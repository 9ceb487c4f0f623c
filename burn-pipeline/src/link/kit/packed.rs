//! A message as bytes: its frame, and the bytes of its tensors.
//!
//! Guarantees: [`Packed::new`], then [`Frame::read`] and [`Frame::message`], returns the same message, bit for bit,
//! including tensors without elements. Tensors are read from their device once. A tensor without other handles is
//! not copied: its bytes are sent as they are, and the received bytes become the tensor.

use super::frame::{Frame, FramePart};
use crate::link::header::Message;
use crate::link::wire_error::WireError;
use crate::payload::{AnyTensor, Payload, PayloadPart, Unwritten, is_cubecl, written};
use burn::tensor::{Bytes, Device, TensorData};

/// Smaller messages are allocated without a check for memory.
const LARGE: usize = 1 << 24;

/// A message that is ready to be sent.
#[derive(Debug)]
pub struct Packed {
    /// The frame, as bytes.
    pub frame: Vec<u8>,
    /// The bytes of each tensor, in the frame's order.
    pub bodies: Vec<Bytes>,
}

impl Packed {
    /// Reads the tensors from their device, waiting for it, and writes the frame.
    ///
    /// # Errors
    /// Returns [`WireError`] if a tensor is quantised or cannot be read.
    pub fn new(message: Message) -> Result<Self, WireError> {
        let (mut parts, mut bodies) = (Vec::new(), Vec::new());
        for part in message.payload.into_parts() {
            match part {
                PayloadPart::Tag(tag) => parts.push(FramePart::Tag(tag)),
                PayloadPart::Host(value) => parts.push(FramePart::Host(value)),
                PayloadPart::Tensor(tensor) => {
                    // A quantised tensor is refused before it is read.
                    FramePart::tensor(tensor.dtype(), Vec::new())?;
                    let data = read(tensor)?;
                    parts.push(FramePart::tensor(data.dtype(), data.shape().to_vec())?);
                    bodies.push(data.into_bytes());
                }
            }
        }
        Ok(Self { frame: Frame::new(message.header, parts).write()?, bodies })
    }
}

/// Reads a tensor from its device.
fn read(tensor: AnyTensor) -> Result<TensorData, WireError> {
    // Such a device copies what is read, so a second handle costs nothing. It tells why the first cannot be read.
    let second = is_cubecl(&tensor.device()).then(|| tensor.clone());
    tensor.into_data().map_err(|message| match written(second.iter()) {
        Err(Unwritten::Memory(message)) => WireError::DeviceMemory { message },
        Err(Unwritten::Lost(message) | Unwritten::Failed(message)) => WireError::Device { message },
        Ok(()) => WireError::Device { message },
    })
}

impl Frame {
    /// Allocates memory for each tensor, in order: zeroed, with the right length and alignment.
    ///
    /// # Errors
    /// Returns [`WireError::NoMemory`] if the frame announces more than this machine can allocate.
    pub fn buffers(&self) -> Result<Vec<Bytes>, WireError> {
        let bytes = self.lengths().try_fold(0usize, usize::checked_add);
        // This does not touch the memory. Allocating zeros without enough memory would end the process.
        let fits = bytes.is_some_and(|bytes| bytes < LARGE || Vec::<u8>::new().try_reserve_exact(bytes).is_ok());
        if !fits {
            return Err(WireError::NoMemory {
                bytes: self.lengths().fold(0, |sum: u64, bytes| sum.saturating_add(bytes as u64)),
            });
        }
        let sizes = self.tensors().map(|(dtype, _)| dtype.size());
        let buffer = |(size, bytes)| match size {
            2 => Bytes::from_elems(vec![0u16; bytes / 2]),
            4 => Bytes::from_elems(vec![0u32; bytes / 4]),
            8 => Bytes::from_elems(vec![0u64; bytes / 8]),
            _ => Bytes::from_elems(vec![0u8; bytes]),
        };
        Ok(sizes.zip(self.lengths()).map(buffer).collect())
    }

    /// The message, with its tensors on `device`.
    ///
    /// # Errors
    /// Returns [`WireError`] if the number of bodies or a body's length is not what the frame announces.
    pub fn message(self, bodies: Vec<Bytes>, device: &Device) -> Result<Message, WireError> {
        let (mut bodies, mut tensors) = (bodies.into_iter(), Vec::new());
        for (index, ((dtype, shape), expected)) in self.tensors().zip(self.lengths()).enumerate() {
            let body = bodies.next().ok_or(WireError::Body { index, got: 0, expected })?;
            let wrong = WireError::Body { index, got: body.len(), expected };
            let data = TensorData::try_from_bytes(body, shape.to_vec(), dtype).map_err(|_| wrong)?;
            tensors.push(AnyTensor::from_data(data, device));
        }
        match bodies.next() {
            None => Ok(Message { header: self.header(), payload: self.with_tensors(tensors) }),
            Some(body) => Err(WireError::Body { index: tensors.len(), got: body.len(), expected: 0 }),
        }
    }

    /// The message's payload, from tensors on their device, as many as the frame announces.
    pub fn with_tensors(&self, tensors: Vec<AnyTensor>) -> Payload {
        let mut tensors = tensors.into_iter();
        let parts = self.parts.iter().filter_map(|part| match part {
            FramePart::Tag(tag) => Some(PayloadPart::Tag(*tag)),
            FramePart::Host(value) => Some(PayloadPart::Host(value.clone())),
            FramePart::Tensor { .. } => tensors.next().map(PayloadPart::Tensor),
        });
        Payload::from_parts(parts.collect::<Vec<_>>())
    }
}
