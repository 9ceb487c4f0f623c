//! Numbers of a frame: their widths, and the codes of directions, kinds and element types.

use super::WireError;
use crate::link::Direction;
use crate::stage::TensorKind;
use burn::tensor::{BoolStore, DType};

pub(super) fn wide(what: &'static str, value: usize) -> Result<[u8; 8], WireError> {
    u64::try_from(value).map(u64::to_le_bytes).map_err(|_| beyond(what, value))
}

pub(super) fn beyond(what: &'static str, value: usize) -> WireError {
    WireError::Beyond { what, value }
}

const KINDS: [TensorKind; 3] = [TensorKind::Float, TensorKind::Int, TensorKind::Bool];
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
pub(in crate::link) fn direction_code(direction: Direction) -> (u8, usize) {
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

pub(super) fn direction_of(code: u8, from: usize) -> Result<Direction, WireError> {
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

pub(super) fn kind_code(kind: TensorKind) -> u8 {
    match kind {
        TensorKind::Float => 0,
        TensorKind::Int => 1,
        TensorKind::Bool => 2,
    }
}

pub(super) fn kind_of(code: u8) -> Result<TensorKind, WireError> {
    KINDS.get(usize::from(code)).copied().ok_or(WireError::Field { what: "kind", value: u64::from(code) })
}

pub(in crate::link) fn dtype_code(dtype: DType) -> Result<u8, WireError> {
    let code = DTYPES.iter().position(|&known| known == dtype).ok_or(WireError::Quantised { dtype })?;
    Ok(code as u8)
}

pub(in crate::link) fn dtype_of(code: u8) -> Result<DType, WireError> {
    DTYPES.get(usize::from(code)).copied().ok_or(WireError::Field { what: "element type", value: u64::from(code) })
}

/// FNV-1a, 64 bits (Fowler, Noll, Vo): any change of one byte changes it.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    let mix = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}
