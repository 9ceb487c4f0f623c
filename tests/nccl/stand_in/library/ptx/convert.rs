//! Conversions between types, and comparisons of values.

use super::code::{Compare, Conversion, Float, Kind, Rounding, Width};
use super::floats;

impl Width {
    pub fn bits(self) -> u32 {
        match self {
            Self::W16 => 16,
            Self::W32 => 32,
            Self::W64 => 64,
        }
    }
}

/// Extends an integer of `bits` bits.
pub fn extend(value: u64, bits: u8, signed: bool) -> i128 {
    let shift = 128 - u32::from(bits);
    let top = i128::from(value) << shift;
    if signed { top >> shift } else { (top as u128 >> shift) as i128 }
}

/// The lowest and the highest value of an integer type.
fn limits(bits: u8, signed: bool) -> (i128, i128) {
    match signed {
        true => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        false => (0, (1 << bits) - 1),
    }
}

/// The bits of a converted value, extended to its register.
pub fn convert(conversion: Conversion, bits: u64) -> u64 {
    match (conversion.from, conversion.to) {
        (Kind::Int { bits: from, signed }, Kind::Int { bits: to, signed: to_signed }) => {
            let value = extend(bits, from, signed);
            let (lowest, highest) = limits(to, to_signed);
            let value = if conversion.saturates { value.clamp(lowest, highest) } else { value };
            into_register(conversion, value, to, to_signed)
        }
        (Kind::Int { bits: from, signed }, Kind::Float(float)) => {
            let value = extend(bits, from, signed);
            match float {
                Float::F32 | Float::F32Flushed => u64::from((value as f32).to_bits()),
                Float::F64 => (value as f64).to_bits(),
                _ => floats::bits(float, to_odd(value)),
            }
        }
        (Kind::Float(float), Kind::Int { bits: to, signed }) => {
            let value = floats::value(float, bits);
            if value.is_nan() {
                let top = float == Float::F64 || to == 64;
                return if top { 1 << (to - 1) } else { 0 };
            }
            let (lowest, highest) = limits(to, signed);
            // Beyond the limits a conversion to an integer always saturates.
            let value = (integral(conversion.rounding, value) as i128).clamp(lowest, highest);
            into_register(conversion, value, to, signed)
        }
        (Kind::Float(from), Kind::Float(to)) => {
            let value = floats::value(from, bits);
            let value = if conversion.to_integral { integral(conversion.rounding, value) } else { value };
            let value = match conversion.saturates {
                true if value.is_nan() => 0.0,
                true => value.clamp(0.0, 1.0) + 0.0,
                false => value,
            };
            floats::bits(to, value)
        }
    }
}

/// An integer rounded to odd, so that a second rounding, to a half, is right: an integer of 64 bits may be just beside
/// the middle of two halves, which `f64` would round to the middle.
fn to_odd(value: i128) -> f64 {
    let nearest = value as f64;
    let lost = value - nearest as i128;
    if lost == 0 || nearest.to_bits() & 1 == 1 {
        return nearest;
    }
    let outwards = (lost > 0) == (value > 0);
    f64::from_bits(if outwards { nearest.to_bits() + 1 } else { nearest.to_bits() - 1 })
}

fn integral(rounding: Rounding, value: f64) -> f64 {
    match rounding {
        Rounding::Nearest => value.round_ties_even(),
        Rounding::Zero => value.trunc(),
        Rounding::Down => value.floor(),
        Rounding::Up => value.ceil(),
    }
}

fn into_register(conversion: Conversion, value: i128, bits: u8, signed: bool) -> u64 {
    let kept = extend(value as u64, bits, signed) as u64;
    kept & (u64::MAX >> (64 - conversion.into.bits()))
}

/// Compares two registers.
pub fn compare(by: Compare, kind: Kind, a: u64, b: u64) -> bool {
    match kind {
        Kind::Float(float) => floats::compare(by, floats::value(float, a), floats::value(float, b)),
        Kind::Int { bits, signed } => {
            let (a, b) = (extend(a, bits, signed), extend(b, bits, signed));
            match by {
                Compare::Equal => a == b,
                Compare::NotEqual => a != b,
                Compare::Less => a < b,
                Compare::LessEqual => a <= b,
                Compare::Greater => a > b,
                Compare::GreaterEqual => a >= b,
                _ => unreachable!("decoding refuses comparisons with NaN for integers"),
            }
        }
    }
}
