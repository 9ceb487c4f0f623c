//! Conversions with their roundings and limits, and half precision.

use crate::{equals, equals16, equals32, threads};

fn single(a: u32) -> f32 {
    f32::from_bits(a)
}

#[test]
fn integers_are_extended_and_cut() {
    equals("cvt.s64.s32 %rd9, %r1;", |a, _, _| i64::from(a as i32) as u64);
    equals("cvt.u64.u16 %rd9, %rs1;", |a, _, _| a & 0xFFFF);
    equals16("cvt.u16.u32 %rs9, %r1;", |a, _, _| a);
    equals32("cvt.s32.s8 %r9, %r1;", |a, _, _| i32::from(a as i8) as u32);
    equals32("cvt.u32.u64 %r9, %rd1;", |a, _, _| a);
    equals32("cvt.sat.s16.s32 %rs9, %r1;\ncvt.s32.s16 %r9, %rs9;", |a, _, _| (a as i32).clamp(-32768, 32767) as u32);
}

#[test]
fn floats_become_integers_within_limits() {
    equals32("cvt.rzi.s32.f32 %r9, %r1;", |a, _, _| single(a) as i32 as u32);
    equals32("cvt.rzi.u32.f32 %r9, %r1;", |a, _, _| single(a) as u32);
    equals32("cvt.rni.s32.f32 %r9, %r1;", |a, _, _| single(a).round_ties_even() as i32 as u32);
    equals32("cvt.rmi.s32.f32 %r9, %r1;", |a, _, _| single(a).floor() as i32 as u32);
    let nan = |a: f32, other: u64| if a.is_nan() { 1 << 63 } else { other };
    equals("cvt.rzi.s64.f32 %rd9, %r1;", |a, _, _| nan(single(a as u32), single(a as u32) as i64 as u64));
}

#[test]
fn integers_become_the_nearest_float() {
    equals32("cvt.rn.f32.s32 %r9, %r1;", |a, _, _| (a as i32 as f32).to_bits());
    equals32("cvt.rn.f32.u64 %r9, %rd1;\nmov.b32 %r9, %r9;\ncvt.rn.f32.u32 %r9, %r1;", |a, _, _| (a as f32).to_bits());
    equals("cvt.rn.f32.u64 %r9, %rd1;\ncvt.u64.u32 %rd9, %r9;", |a, _, _| u64::from((a as f32).to_bits()));
    equals("cvt.rn.f64.s64 %rd9, %rd1;", |a, _, _| (a as i64 as f64).to_bits());
    equals("cvt.rn.f64.u32 %rd9, %r1;", |a, _, _| f64::from(a as u32).to_bits());
}

#[test]
fn floats_are_rounded_to_other_floats() {
    let canonical = |a: f32| if a.is_nan() { 0x7FFF_FFFF } else { a.to_bits() };
    equals32("cvt.rn.f32.f64 %r9, %rd1;\nmov.b32 %r9, %r9;\ncvt.rpi.f32.f32 %r9, %r1;", |a, _, _| {
        canonical(single(a).ceil())
    });
    equals("cvt.rn.f32.f64 %r9, %rd1;\ncvt.u64.u32 %rd9, %r9;", |a, _, _| {
        u64::from(canonical(f64::from_bits(a) as f32))
    });
}

/// The half nearest to a float by its definition: of all halves, ties to the even one.
fn nearest(value: f64, exponent: i32, mantissa: i32) -> u16 {
    if value.is_nan() {
        return 0x7FFF;
    }
    let bias = (1 << (exponent - 1)) - 1;
    let of = |bits: i32| {
        let (power, rest) = (bits >> mantissa, f64::from(bits & ((1 << mantissa) - 1)) / f64::from(1 << mantissa));
        if power == 0 { rest * 2_f64.powi(1 - bias) } else { (1.0 + rest) * 2_f64.powi(power - bias) }
    };
    // Beyond the largest half there is one more, whose place infinity takes.
    let infinity = ((1 << exponent) - 1) << mantissa;
    let (mut low, mut high) = (0, infinity);
    while low + 1 < high {
        let middle = (low + high) / 2;
        if of(middle) <= value.abs() { low = middle } else { high = middle }
    }
    let (below, above) = (value.abs() - of(low), of(high) - value.abs());
    let bits = if above < below || (above == below && low & 1 == 1) { high } else { low };
    bits as u16 | if value.is_sign_negative() { 0x8000 } else { 0 }
}

#[test]
fn halves_are_the_nearest() {
    for (kind, exponent, mantissa) in [("f16", 5, 10), ("bf16", 8, 7)] {
        let of = |a: u32| u32::from(nearest(f64::from(single(a)), exponent, mantissa));
        equals32(&format!("cvt.rn.{kind}.f32 %rs9, %r1;\ncvt.u32.u16 %r9, %rs9;"), |a, _, _| of(a));
        // Every half goes to `f32` and back.
        let there = format!("cvt.f32.{kind} %r9, %rs1;\ncvt.rn.{kind}.f32 %rs9, %r9;");
        let nan = |a: u16| a & 0x7FFF > ((1 << exponent) - 1) << mantissa;
        equals16(&there, |a, _, _| if nan(a) { 0x7FFF } else { a });
    }
}

/// The `bf16` nearest to an integer, by its bits alone: the upper eight, rounded by those that are cut off.
fn nearest_bf16(magnitude: u64) -> u16 {
    let width = 64 - magnitude.leading_zeros();
    let cut = width.saturating_sub(8);
    let (kept, rest) = (magnitude >> cut, magnitude & !(u64::MAX << cut));
    let half = if cut == 0 { 1 } else { 1 << (cut - 1) };
    let up = rest > half || (rest == half && kept & 1 == 1);
    // Eight bits and a power of two are exact in `f32`, also when they have grown to nine.
    let value = (kept + u64::from(up)) as f32 * 2_f32.powi(cut as i32);
    (value.to_bits() >> 16) as u16
}

#[test]
fn integers_become_the_nearest_half_by_one_rounding() {
    let middles = [1_u64, 0x8080_0000_0000_0000, 0x4080_0000_0000_0000, 0xFF80_0000_0000_0000, 0x0101_0000_0000_0000];
    let beside = |middle: u64| [middle.wrapping_sub(1), middle, middle + 1, middle.wrapping_neg()];
    let operands: Vec<[u64; 3]> = middles.into_iter().flat_map(beside).chain([3; 12]).map(|a| [a, a, a]).collect();
    let operands = [operands, crate::operands()].concat();
    type Nearest = fn(u64) -> u16;
    let signed: Nearest = |a| nearest_bf16((a as i64).unsigned_abs()) | if (a as i64) < 0 { 0x8000 } else { 0 };
    for (kind, expected) in [("u64", nearest_bf16 as Nearest), ("s64", signed)] {
        let got = threads(&format!("cvt.rn.bf16.{kind} %rs9, %rd1;\ncvt.u64.u16 %rd9, %rs9;"), &operands);
        for ([a, ..], got) in operands.iter().zip(got) {
            assert!(got == u64::from(expected(*a)), "{kind} {a:#x}: {got:#x} instead of {:#x}", expected(*a));
        }
    }
    // Beyond 65,504 an `f16` is infinite, below it `f64` holds every integer.
    let f16 = |a: u64| u64::from(nearest(a as i64 as f64, 5, 10));
    equals("cvt.rn.f16.s64 %rs9, %rd1;\ncvt.u64.u16 %rd9, %rs9;", |a, _, _| f16(a));
}

#[test]
fn halves_are_computed_with_one_rounding() {
    let half = |a: u16| -> f64 {
        let (power, rest) = (i32::from(a >> 10 & 31), f64::from(a & 1023) / 1024.0);
        let size = match power {
            0 => rest * 2_f64.powi(-14),
            31 if rest == 0.0 => f64::INFINITY,
            31 => f64::NAN,
            power => (1.0 + rest) * 2_f64.powi(power - 15),
        };
        if a >> 15 == 1 { -size } else { size }
    };
    let rounded = |value: f64| nearest(value, 5, 10);
    equals16("add.f16 %rs9, %rs1, %rs2;", |a, b, _| rounded(half(a) + half(b)));
    equals16("mul.f16 %rs9, %rs1, %rs2;", |a, b, _| rounded(half(a) * half(b)));
    let pair = |a: u32, b: u32, of: fn(f64, f64) -> f64| {
        let one = |shift: u32| u32::from(rounded(of(half((a >> shift) as u16), half((b >> shift) as u16))));
        one(0) | one(16) << 16
    };
    equals32("add.f16x2 %r9, %r1, %r2;", |a, b, _| pair(a, b, |a, b| a + b));
    equals32("mul.f16x2 %r9, %r1, %r2;", |a, b, _| pair(a, b, |a, b| a * b));
    // Just below a tie, which a sum that is rounded before would be: 1.5 * (1 + 2^-7) - 2^-100.
    equals16("fma.rn.bf16 %rs9, 0x3FC0, 0x3F81, 0x8D80;", |_, _, _| 0x3FC1);
}
