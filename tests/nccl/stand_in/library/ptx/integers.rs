//! Arithmetic and logic of integers. Values of 16 bits are kept in the low half of a register, the upper one zero.

use super::code::{Int1, Int2, Width};

pub type Singles = [u32; 32];
pub type Doubles = [u64; 32];

/// An operation on 32-bit values; those of 16 bits are widened before and cut after it.
pub fn two_singles(op: Int2, width: Width, signed: bool, a: &Singles, b: &Singles) -> Singles {
    if width == Width::W16 {
        let wide = |values: &Singles| values.map(|value| extend16(value, signed));
        // The amount of a shift is 32 bits.
        let b = if matches!(op, Int2::ShiftLeft | Int2::ShiftRight) { *b } else { wide(b) };
        let product = op == Int2::MulHigh;
        let result = two(if product { Int2::MulLow } else { op }, signed, &wide(a), &b);
        return result.map(|value| if product { value >> 16 } else { value & 0xFFFF });
    }
    two(op, signed, a, b)
}

fn extend16(value: u32, signed: bool) -> u32 {
    if signed { value as u16 as i16 as i32 as u32 } else { value & 0xFFFF }
}

fn map(a: &Singles, b: &Singles, f: impl Fn(u32, u32) -> u32) -> Singles {
    std::array::from_fn(|lane| f(a[lane], b[lane]))
}

fn two(op: Int2, signed: bool, a: &Singles, b: &Singles) -> Singles {
    let s = |f: fn(i32, i32) -> i32| map(a, b, |a, b| f(a as i32, b as i32) as u32);
    match (op, signed) {
        (Int2::Add, _) => map(a, b, u32::wrapping_add),
        (Int2::Sub, _) => map(a, b, u32::wrapping_sub),
        (Int2::MulLow, _) => map(a, b, u32::wrapping_mul),
        (Int2::MulHigh, false) => map(a, b, |a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32),
        (Int2::MulHigh, true) => s(|a, b| ((i64::from(a) * i64::from(b)) >> 32) as i32),
        (Int2::Div, false) => map(a, b, |a, b| a.checked_div(b).unwrap_or(u32::MAX)),
        (Int2::Div, true) => s(|a, b| if b == 0 { -1 } else { a.wrapping_div(b) }),
        (Int2::Rem, false) => map(a, b, |a, b| a.checked_rem(b).unwrap_or(a)),
        (Int2::Rem, true) => s(|a, b| if b == 0 { a } else { a.wrapping_rem(b) }),
        (Int2::Min, false) => map(a, b, u32::min),
        (Int2::Min, true) => s(i32::min),
        (Int2::Max, false) => map(a, b, u32::max),
        (Int2::Max, true) => s(i32::max),
        (Int2::And, _) => map(a, b, |a, b| a & b),
        (Int2::Or, _) => map(a, b, |a, b| a | b),
        (Int2::Xor, _) => map(a, b, |a, b| a ^ b),
        (Int2::ShiftLeft, _) => map(a, b, |a, b| a.checked_shl(b).unwrap_or(0)),
        (Int2::ShiftRight, false) => map(a, b, |a, b| a.checked_shr(b).unwrap_or(0)),
        (Int2::ShiftRight, true) => map(a, b, |a, b| (a as i32 >> b.min(31)) as u32),
    }
}

fn map64(a: &Doubles, b: &Doubles, f: impl Fn(u64, u64) -> u64) -> Doubles {
    std::array::from_fn(|lane| f(a[lane], b[lane]))
}

/// An operation on 64-bit values, except for shifts.
pub fn two_doubles(op: Int2, signed: bool, a: &Doubles, b: &Doubles) -> Doubles {
    let s = |f: fn(i64, i64) -> i64| map64(a, b, |a, b| f(a as i64, b as i64) as u64);
    match (op, signed) {
        (Int2::Add, _) => map64(a, b, u64::wrapping_add),
        (Int2::Sub, _) => map64(a, b, u64::wrapping_sub),
        (Int2::MulLow, _) => map64(a, b, u64::wrapping_mul),
        (Int2::MulHigh, false) => map64(a, b, |a, b| ((u128::from(a) * u128::from(b)) >> 64) as u64),
        (Int2::MulHigh, true) => s(|a, b| ((i128::from(a) * i128::from(b)) >> 64) as i64),
        (Int2::Div, false) => map64(a, b, |a, b| a.checked_div(b).unwrap_or(u64::MAX)),
        (Int2::Div, true) => s(|a, b| if b == 0 { -1 } else { a.wrapping_div(b) }),
        (Int2::Rem, false) => map64(a, b, |a, b| a.checked_rem(b).unwrap_or(a)),
        (Int2::Rem, true) => s(|a, b| if b == 0 { a } else { a.wrapping_rem(b) }),
        (Int2::Min, false) => map64(a, b, u64::min),
        (Int2::Min, true) => s(i64::min),
        (Int2::Max, false) => map64(a, b, u64::max),
        (Int2::Max, true) => s(i64::max),
        (Int2::And, _) => map64(a, b, |a, b| a & b),
        (Int2::Or, _) => map64(a, b, |a, b| a | b),
        (Int2::Xor, _) => map64(a, b, |a, b| a ^ b),
        (Int2::ShiftLeft, _) => map64(a, b, |a, b| a.checked_shl(b as u32).unwrap_or(0)),
        (Int2::ShiftRight, false) => map64(a, b, |a, b| a.checked_shr(b as u32).unwrap_or(0)),
        (Int2::ShiftRight, true) => map64(a, b, |a, b| (a as i64 >> b.min(63)) as u64),
    }
}

/// Results that count bits are 32 bits, whatever the operand.
pub fn one(op: Int1, width: Width, value: u64) -> u64 {
    let bits = match width {
        Width::W16 => 16,
        Width::W32 => 32,
        Width::W64 => 64,
    };
    let kept = u64::MAX >> (64 - bits);
    let signed = (value << (64 - bits)) as i64 >> (64 - bits);
    match op {
        Int1::Neg => value.wrapping_neg() & kept,
        Int1::Abs => signed.wrapping_abs() as u64 & kept,
        Int1::Not => !value & kept,
        Int1::CountOnes => u64::from((value & kept).count_ones()),
        Int1::LeadingZeros => u64::from((value & kept).leading_zeros() - (64 - bits)),
        Int1::Reverse => value.reverse_bits() >> (64 - bits),
    }
}
