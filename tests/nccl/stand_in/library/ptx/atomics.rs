//! What an atomic change writes.

use super::code::{Change, Float, Float2, Kind};
use super::convert::extend;
use super::floats;

/// The new value of a place.
pub fn changed(change: Change, kind: Kind, old: u64, value: u64, other: u64) -> u64 {
    match (change, kind) {
        (Change::Exchange, _) => value,
        (Change::CompareAndSwap, _) => {
            if old == value {
                other
            } else {
                old
            }
        }
        (Change::And, _) => old & value,
        (Change::Or, _) => old | value,
        (Change::Xor, _) => old ^ value,
        (Change::Add, Kind::Float(Float::F64)) => (f64::from_bits(old) + f64::from_bits(value)).to_bits(),
        (Change::Add, Kind::Float(float)) => {
            u64::from(floats::two(Float2::Add, float, &[old as u32; 32], &[value as u32; 32])[0])
        }
        (Change::Add, Kind::Int { .. }) => old.wrapping_add(value),
        (Change::Min | Change::Max, Kind::Int { bits, signed }) => {
            let less = extend(old, bits, signed) < extend(value, bits, signed);
            if less == (change == Change::Min) { old } else { value }
        }
        (Change::Min | Change::Max, Kind::Float(_)) => unreachable!("decoding refuses these"),
    }
}
