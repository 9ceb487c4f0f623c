//! A frame, piece by piece: bytes that were cut or changed are refused with what was to come there.

use super::codes::{dtype_of, kind_of};
use super::{CHECKSUM, MAGIC, REPEAT, Slot, WIRE_VERSION, WireError, checksum};
use crate::stage::TensorKind;

/// What of a frame is still to be read.
pub(super) struct Reader<'a> {
    left: &'a [u8],
    length: usize,
}

impl<'a> Reader<'a> {
    /// Reads on after the first four bytes and the version, once the checksum is found right.
    pub(super) fn verified(bytes: &'a [u8]) -> Result<Self, WireError> {
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

    pub(super) fn end(&self) -> Result<(), WireError> {
        match self.left.len() {
            0 => Ok(()),
            _ => Err(WireError::Length { length: self.length, what: "nothing" }),
        }
    }

    pub(super) fn take<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], WireError> {
        let (taken, left) = self.left.split_first_chunk().ok_or(WireError::Length { length: self.length, what })?;
        self.left = left;
        Ok(*taken)
    }

    pub(super) fn size(&mut self, what: &'static str) -> Result<usize, WireError> {
        let value = u64::from_le_bytes(self.take(what)?);
        usize::try_from(value).map_err(|_| WireError::Field { what, value })
    }

    pub(super) fn part(&mut self) -> Result<Slot, WireError> {
        match self.take("a part")? {
            [0] => Ok(Slot::Tag(self.size("a form")?)),
            [1] => self.tensor(),
            [value] => Err(WireError::Field { what: "part", value: u64::from(value) }),
        }
    }

    fn tensor(&mut self) -> Result<Slot, WireError> {
        let [kind, dtype, dims] = self.take("a tensor's type")?;
        let (kind, dtype) = (kind_of(kind)?, dtype_of(dtype)?);
        if TensorKind::of(dtype) != kind {
            return Err(WireError::Mixed { kind, dtype });
        }
        let shape = (0..dims).map(|_| self.size("a tensor's shape")).collect::<Result<Vec<_>, _>>()?;
        let bytes = shape.iter().try_fold(dtype.size(), |bytes, &size| bytes.checked_mul(size));
        let bytes = bytes.filter(|&bytes| bytes <= isize::MAX as usize);
        let bytes = bytes.ok_or_else(|| WireError::TooLarge { shape: shape.iter().map(|&s| s as u64).collect() })?;
        Ok(Slot::Tensor { kind, dtype, shape, bytes })
    }
}
