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
//! for is for the transport to say: `repeats.rs`.

mod announce;
#[cfg(any(test, feature = "nccl"))]
mod offer;

use super::wire_error::WireError;
use super::{Direction, Header, Message};
use crate::plan::Stage;
use crate::stage::{AnyTensor, Kind, Part, Payload};
use burn::tensor::{BoolStore, Bytes, DType, Device, TensorData};
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
    pub(super) fn is(bytes: &[u8]) -> bool {
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

#[derive(Debug, Clone, PartialEq, Eq)]
enum Slot {
    Form(usize),
    Tensor { kind: Kind, dtype: DType, shape: Vec<usize>, bytes: usize },
}

impl Packed {
    /// Reads the tensors off their device (waits for it) and writes the frame.
    ///
    /// # Errors
    /// If a tensor is quantised, cannot be read, or a number does not fit into a frame.
    pub fn new(message: Message) -> Result<Self, WireError> {
        let parts: Vec<Part> = message.payload.into_parts().collect();
        let mut frame = begin(message.header, parts.len())?;
        let mut bodies = Vec::new();
        for part in parts {
            match part {
                Part::Form(form) => {
                    frame.push(0);
                    frame.extend(wide("form", form)?);
                }
                Part::Tensor(tensor) => bodies.push(write_tensor(&mut frame, tensor)?),
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

fn describe(frame: &mut Vec<u8>, kind: Kind, dtype: DType, shape: &[usize]) -> Result<(), WireError> {
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
        let stage = Stage::in_replica(usize::from(replica), index as usize);
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
    #[cfg_attr(not(feature = "mpi"), allow(dead_code, reason = "the thread that calls MPI asks"))]
    pub(super) fn lengths(&self) -> impl Iterator<Item = usize> {
        self.parts.iter().filter_map(|slot| match slot {
            Slot::Form(_) => None,
            Slot::Tensor { bytes, .. } => Some(*bytes),
        })
    }

    /// Memory for each tensor that is to come, in order, zeroed, of the right length and alignment.
    pub fn landings(&self) -> Vec<Bytes> {
        let landing = |slot: &Slot| match slot {
            Slot::Form(_) => None,
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
                Slot::Form(form) => payload.push_form(*form),
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

struct Reader<'a> {
    left: &'a [u8],
    length: usize,
}

impl<'a> Reader<'a> {
    /// Reads on after the first four bytes and the version, once the checksum is found right.
    fn verified(bytes: &'a [u8]) -> Result<Self, WireError> {
        let length = bytes.len();
        let end = length.checked_sub(CHECKSUM).ok_or(WireError::Length { length, what: "the checksum" })?;
        let (content, sum) = bytes.split_at(end);
        let mut reader = Reader { left: content, length };
        // Said first, so that ranks of another version hear of that and not of a broken frame.
        if ![MAGIC, REPEAT].contains(&reader.take::<4>("the first four bytes")?) {
            return Err(WireError::Checksum);
        }
        let got = u16::from_le_bytes(reader.take("the version")?);
        if checksum(content).to_le_bytes() != *sum {
            return Err(WireError::Checksum);
        }
        if got != WIRE_VERSION {
            return Err(WireError::Version { got });
        }
        Ok(reader)
    }

    fn end(&self) -> Result<(), WireError> {
        match self.left.len() {
            0 => Ok(()),
            _ => Err(WireError::Length { length: self.length, what: "nothing" }),
        }
    }

    fn take<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], WireError> {
        let (taken, left) = self.left.split_first_chunk().ok_or(WireError::Length { length: self.length, what })?;
        self.left = left;
        Ok(*taken)
    }

    fn size(&mut self, what: &'static str) -> Result<usize, WireError> {
        let value = u64::from_le_bytes(self.take(what)?);
        usize::try_from(value).map_err(|_| WireError::Field { what, value })
    }

    fn part(&mut self) -> Result<Slot, WireError> {
        match self.take("a part")? {
            [0] => Ok(Slot::Form(self.size("a form")?)),
            [1] => self.tensor(),
            [value] => Err(WireError::Field { what: "part", value: u64::from(value) }),
        }
    }

    fn tensor(&mut self) -> Result<Slot, WireError> {
        let [kind, dtype, dims] = self.take("a tensor's type")?;
        let (kind, dtype) = (kind_of(kind)?, dtype_of(dtype)?);
        if Kind::of(dtype) != kind {
            return Err(WireError::Mixed { kind, dtype });
        }
        let shape = (0..dims).map(|_| self.size("a tensor's shape")).collect::<Result<Vec<_>, _>>()?;
        let bytes = shape.iter().try_fold(dtype.size(), |bytes, &size| bytes.checked_mul(size));
        let bytes = bytes.filter(|&bytes| bytes <= isize::MAX as usize);
        let bytes = bytes.ok_or_else(|| WireError::TooLarge { shape: shape.iter().map(|&s| s as u64).collect() })?;
        Ok(Slot::Tensor { kind, dtype, shape, bytes })
    }
}

fn wide(what: &'static str, value: usize) -> Result<[u8; 8], WireError> {
    u64::try_from(value).map(u64::to_le_bytes).map_err(|_| beyond(what, value))
}

fn beyond(what: &'static str, value: usize) -> WireError {
    WireError::Beyond { what, value }
}

const KINDS: [Kind; 3] = [Kind::Float, Kind::Int, Kind::Bool];
const DTYPES: [DType; 16] = [
    DType::F64,
    DType::F32,
    DType::Flex32,
    DType::F16,
    DType::BF16,
    DType::I64,
    DType::I32,
    DType::I16,
    DType::I8,
    DType::U64,
    DType::U32,
    DType::U16,
    DType::U8,
    DType::Bool(BoolStore::Native),
    DType::Bool(BoolStore::U8),
    DType::Bool(BoolStore::U32),
];

/// Its code, and the stage at the other end of an edge past the next stage (else 0).
pub(super) fn direction_code(direction: Direction) -> (u8, usize) {
    match direction {
        Direction::Forward => (0, 0),
        Direction::Backward => (1, 0),
        Direction::Replica => (2, 0),
        Direction::Probe => (3, 0),
        Direction::Spread => (4, 0),
        Direction::Output => (5, 0),
        Direction::Shared => (6, 0),
        Direction::Skip { from } => (7, from),
        Direction::SkipGradient { from } => (8, from),
        Direction::Gradient { from } => (9, from),
        Direction::Shard { from } => (10, from),
    }
}

fn direction_of(code: u8, from: usize) -> Result<Direction, WireError> {
    match (code, from) {
        (0, 0) => Ok(Direction::Forward),
        (1, 0) => Ok(Direction::Backward),
        (2, 0) => Ok(Direction::Replica),
        (3, 0) => Ok(Direction::Probe),
        (4, 0) => Ok(Direction::Spread),
        (5, 0) => Ok(Direction::Output),
        (6, 0) => Ok(Direction::Shared),
        (7, from) => Ok(Direction::Skip { from }),
        (8, from) => Ok(Direction::SkipGradient { from }),
        (9, from) => Ok(Direction::Gradient { from }),
        (10, from) => Ok(Direction::Shard { from }),
        _ => Err(WireError::Field { what: "direction", value: u64::from(code) }),
    }
}

fn kind_code(kind: Kind) -> u8 {
    match kind {
        Kind::Float => 0,
        Kind::Int => 1,
        Kind::Bool => 2,
    }
}

fn kind_of(code: u8) -> Result<Kind, WireError> {
    KINDS.get(usize::from(code)).copied().ok_or(WireError::Field { what: "kind", value: u64::from(code) })
}

pub(super) fn dtype_code(dtype: DType) -> Result<u8, WireError> {
    let code = DTYPES.iter().position(|&known| known == dtype).ok_or(WireError::Quantised { dtype })?;
    Ok(code as u8)
}

pub(super) fn dtype_of(code: u8) -> Result<DType, WireError> {
    DTYPES.get(usize::from(code)).copied().ok_or(WireError::Field { what: "element type", value: u64::from(code) })
}

/// FNV-1a, 64 bits (Fowler, Noll, Vo): any change of one byte changes it.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    let mix = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}
