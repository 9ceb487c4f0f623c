//! Arithmetic of floats with one rounding to the nearest.
//!
//! Half precision is computed in `f64` and rounded once more, which gives the same: `f64` has more than twice its
//! digits, and the sum of a fused product is first rounded to odd (`half.rs`).

use super::code::{Compare, Float, Float1, Float2};
use super::half::{BF16, F16, Format, multiply_add};
use super::integers::{Doubles, Singles};

/// The NaN that arithmetic in `f32` gives.
const NAN: u32 = 0x7FFF_FFFF;

fn flush(bits: u32, flushes: bool) -> u32 {
    if flushes && bits & 0x7F80_0000 == 0 { bits & 0x8000_0000 } else { bits }
}

fn out(value: f32, flushes: bool) -> u32 {
    if value.is_nan() { NAN } else { flush(value.to_bits(), flushes) }
}

/// Applies a function of `f32` to each lane.
fn map<const N: usize>(flushes: bool, values: [&Singles; N], f: impl Fn([f32; N]) -> f32) -> Singles {
    std::array::from_fn(|lane| out(f(values.map(|value| f32::from_bits(flush(value[lane], flushes)))), flushes))
}

/// Applies a function of `f64` to one or two halves of each lane.
fn halves<const N: usize>(float: Float, values: [&Singles; N], f: impl Fn([f64; N]) -> f64) -> Singles {
    let (format, pair) = format(float);
    let of =
        |lane: usize, shift: u32| format.narrow(f(values.map(|value| format.widen((value[lane] >> shift) as u16))));
    std::array::from_fn(|lane| {
        let high = if pair { u32::from(of(lane, 16)) << 16 } else { 0 };
        high | u32::from(of(lane, 0))
    })
}

/// The format of half precision, and true for two of them in a register.
fn format(float: Float) -> (Format, bool) {
    match float {
        Float::F16 => (F16, false),
        Float::F16x2 => (F16, true),
        Float::Bf16 => (BF16, false),
        Float::Bf16x2 => (BF16, true),
        Float::F32 | Float::F32Flushed | Float::F64 => unreachable!("half precision"),
    }
}

pub fn one(op: Float1, float: Float, a: &Singles) -> Singles {
    let flushes = float == Float::F32Flushed;
    match (op, float) {
        (Float1::Neg | Float1::Abs, Float::F32 | Float::F32Flushed) => a.map(|bits| {
            let bits = flush(bits, flushes);
            if op == Float1::Neg { bits ^ 1 << 31 } else { bits & !(1 << 31) }
        }),
        (Float1::Sqrt, Float::F32 | Float::F32Flushed) => map(flushes, [a], |[a]| a.sqrt()),
        (_, Float::F32 | Float::F32Flushed) => map(flushes, [a], |[a]| one_double(op, f64::from(a)) as f32),
        _ => halves(float, [a], |[a]| one_double(op, a)),
    }
}

pub fn one_double(op: Float1, a: f64) -> f64 {
    match op {
        Float1::Neg => -a,
        Float1::Abs => a.abs(),
        Float1::Sqrt => a.sqrt(),
        Float1::Reciprocal => 1.0 / a,
        Float1::ReciprocalSqrt => 1.0 / a.sqrt(),
        Float1::Exp2 => a.exp2(),
        Float1::Log2 => a.log2(),
        Float1::Sin => a.sin(),
        Float1::Cos => a.cos(),
        Float1::Tanh => a.tanh(),
    }
}

pub fn two(op: Float2, float: Float, a: &Singles, b: &Singles) -> Singles {
    let flushes = match float {
        Float::F32 => false,
        Float::F32Flushed => true,
        _ => return halves(float, [a, b], |[a, b]| two_doubles(op, a, b)),
    };
    match op {
        Float2::Add => map(flushes, [a, b], |[a, b]| a + b),
        Float2::Sub => map(flushes, [a, b], |[a, b]| a - b),
        Float2::Mul => map(flushes, [a, b], |[a, b]| a * b),
        Float2::Div => map(flushes, [a, b], |[a, b]| a / b),
        // Exact, whatever the width.
        _ => map(flushes, [a, b], |[a, b]| two_doubles(op, f64::from(a), f64::from(b)) as f32),
    }
}

pub fn two_doubles(op: Float2, a: f64, b: f64) -> f64 {
    // The smaller zero is the negative one.
    let least = || if a < b || (a == b && a.is_sign_negative()) { a } else { b };
    let largest = || if a > b || (a == b && a.is_sign_positive()) { a } else { b };
    match op {
        Float2::Add => a + b,
        Float2::Sub => a - b,
        Float2::Mul => a * b,
        Float2::Div => a / b,
        Float2::MinNan | Float2::MaxNan if a.is_nan() || b.is_nan() => f64::NAN,
        Float2::Min | Float2::Max if a.is_nan() => b,
        Float2::Min | Float2::Max if b.is_nan() => a,
        Float2::Min | Float2::MinNan => least(),
        Float2::Max | Float2::MaxNan => largest(),
        // The sign of the first, the rest of the second.
        Float2::CopySign => b.copysign(a),
    }
}

pub fn multiply_and_add(float: Float, a: &Singles, b: &Singles, c: &Singles) -> Singles {
    match float {
        Float::F32 | Float::F32Flushed => map(float == Float::F32Flushed, [a, b, c], |[a, b, c]| a.mul_add(b, c)),
        _ => halves(float, [a, b, c], |[a, b, c]| multiply_add(a, b, c)),
    }
}

/// The `.sat` of an instruction.
pub fn saturate(float: Float, a: &Singles) -> Singles {
    let limited = |value: f64| if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) + 0.0 };
    match float {
        Float::F32 | Float::F32Flushed => map(false, [a], |[a]| limited(f64::from(a)) as f32),
        _ => halves(float, [a], |[a]| limited(a)),
    }
}

/// A register's value, for comparisons and conversions.
pub fn value(float: Float, bits: u64) -> f64 {
    match float {
        Float::F32 => f64::from(f32::from_bits(bits as u32)),
        Float::F32Flushed => f64::from(f32::from_bits(flush(bits as u32, true))),
        Float::F64 => f64::from_bits(bits),
        _ => format(float).0.widen(bits as u16),
    }
}

/// The bits of a value, rounded once.
pub fn bits(float: Float, value: f64) -> u64 {
    match float {
        Float::F32 | Float::F32Flushed => u64::from(out(value as f32, float == Float::F32Flushed)),
        Float::F64 => value.to_bits(),
        _ => u64::from(format(float).0.narrow(value)),
    }
}

/// Compares two floats, exactly in `f64`.
pub fn compare(compare: Compare, a: f64, b: f64) -> bool {
    let nan = a.is_nan() || b.is_nan();
    match compare {
        Compare::Equal => a == b,
        // An ordered comparison does not hold for NaN.
        Compare::NotEqual => !nan && a != b,
        Compare::Less => a < b,
        Compare::LessEqual => a <= b,
        Compare::Greater => a > b,
        Compare::GreaterEqual => a >= b,
        Compare::EqualOrNan => nan || a == b,
        Compare::NotEqualOrNan => a != b,
        Compare::LessOrNan => nan || a < b,
        Compare::LessEqualOrNan => nan || a <= b,
        Compare::GreaterOrNan => nan || a > b,
        Compare::GreaterEqualOrNan => nan || a >= b,
        Compare::BothNumbers => !nan,
        Compare::AnyNan => nan,
    }
}

/// An operation in `f64` on each lane.
pub fn doubles<const N: usize>(values: [&Doubles; N], f: impl Fn([f64; N]) -> f64) -> Doubles {
    std::array::from_fn(|lane| f(values.map(|value| f64::from_bits(value[lane]))).to_bits())
}
