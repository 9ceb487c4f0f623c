//! Integers, bits and floats.

use crate::{equals, equals16, equals32};

#[test]
fn integers_of_32_bits() {
    equals32("add.s32 %r9, %r1, %r2;", |a, b, _| a.wrapping_add(b));
    equals32("sub.s32 %r9, %r1, -7;", |a, _, _| a.wrapping_add(7));
    equals32("mul.lo.s32 %r9, %r1, %r2;", |a, b, _| a.wrapping_mul(b));
    equals32("mul.hi.u32 %r9, %r1, %r2;", |a, b, _| ((u64::from(a) * u64::from(b)) >> 32) as u32);
    equals32("mul.hi.s32 %r9, %r1, %r2;", |a, b, _| ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32);
    equals32("mad.lo.s32 %r9, %r1, %r2, %r3;", |a, b, c| a.wrapping_mul(b).wrapping_add(c));
    equals32("div.u32 %r9, %r1, %r2;", |a, b, _| a.checked_div(b).unwrap_or(u32::MAX));
    equals32("div.s32 %r9, %r1, 7;", |a, _, _| ((a as i32) / 7) as u32);
    equals32("div.s32 %r9, %r1, -1;", |a, _, _| 0_u32.wrapping_sub(a));
    equals32("rem.s32 %r9, %r1, 7;", |a, _, _| ((a as i32) % 7) as u32);
    equals32("rem.u32 %r9, %r1, 11;", |a, _, _| a % 11);
    equals32("min.s32 %r9, %r1, %r2;", |a, b, _| (a as i32).min(b as i32) as u32);
    equals32("min.u32 %r9, %r1, %r2;", |a, b, _| a.min(b));
    equals32("max.s32 %r9, %r1, %r2;", |a, b, _| (a as i32).max(b as i32) as u32);
    equals32("max.u32 %r9, %r1, %r2;", |a, b, _| a.max(b));
    equals32("shl.b32 %r9, %r1, %r2;", |a, b, _| if b > 31 { 0 } else { a << b });
    equals32("shr.s32 %r9, %r1, %r2;", |a, b, _| (i64::from(a as i32) >> b.min(63)) as u32);
    equals32("shr.u32 %r9, %r1, %r2;", |a, b, _| if b > 31 { 0 } else { a >> b });
    equals32("neg.s32 %r9, %r1;", |a, _, _| 0_u32.wrapping_sub(a));
    equals32("abs.s32 %r9, %r1;", |a, _, _| (a as i32).wrapping_abs() as u32);
}

#[test]
fn integers_of_16_and_64_bits() {
    equals16("add.s16 %rs9, %rs1, %rs2;", |a, b, _| a.wrapping_add(b));
    equals16("mul.hi.s16 %rs9, %rs1, %rs2;", |a, b, _| ((i32::from(a as i16) * i32::from(b as i16)) >> 16) as u16);
    equals16("max.u16 %rs9, %rs1, %rs2;", |a, b, _| a.max(b));
    equals16("min.s16 %rs9, %rs1, %rs2;", |a, b, _| (a as i16).min(b as i16) as u16);
    equals16("not.b16 %rs9, %rs1;", |a, _, _| !a);
    equals16("and.b16 %rs9, %rs1, %rs2;", |a, b, _| a & b);
    equals16("mov.b16 %rs9, %rs2;", |_, b, _| b);
    let shifted = |a: u64, b: u64| if b as u32 > 15 { 0 } else { (a & 0xFFFF) >> (b as u32) };
    equals("shr.u16 %rs9, %rs1, %r2;\ncvt.u64.u16 %rd9, %rs9;", |a, b, _| shifted(a, b));
    for kind in ["s64", "u64"] {
        equals(&format!("add.{kind} %rd9, %rd1, %rd2;"), |a, b, _| a.wrapping_add(b));
    }
    equals("and.b64 %rd9, %rd1, %rd2;", |a, b, _| a & b);
    equals("shr.u64 %rd9, %rd1, %r2;", |a, b, _| a.checked_shr(b as u32).unwrap_or(0));
    equals("mul.lo.s64 %rd9, %rd1, %rd2;", |a, b, _| a.wrapping_mul(b));
    equals("mul.hi.s64 %rd9, %rd1, %rd2;", |a, b, _| ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64);
    equals("mul.wide.s32 %rd9, %r1, %r2;", |a, b, _| (i64::from(a as i32) * i64::from(b as i32)) as u64);
    equals("mad.wide.u32 %rd9, %r1, %r2, %rd3;", |a, b, c| (u64::from(a as u32) * u64::from(b as u32)).wrapping_add(c));
    equals("min.u64 %rd9, %rd1, %rd2;", |a, b, _| a.min(b));
    equals("shl.b64 %rd9, %rd1, %r2;", |a, b, _| a.checked_shl(b as u32).unwrap_or(0));
    equals("shr.s64 %rd9, %rd1, %r2;", |a, b, _| (i128::from(a as i64) >> (b as u32).min(127)) as u64);
    equals("div.u64 %rd9, %rd1, 10;", |a, _, _| a / 10);
}

#[test]
fn bits() {
    equals32("xor.b32 %r9, %r1, %r2;", |a, b, _| a ^ b);
    equals32("or.b32 %r9, %r1, %r2;", |a, b, _| a | b);
    equals32("not.b32 %r9, %r1;", |a, _, _| !a);
    equals32("popc.b32 %r9, %r1;", |a, _, _| a.count_ones());
    equals("popc.b64 %r9, %rd1;\ncvt.u64.u32 %rd9, %r9;", |a, _, _| u64::from(a.count_ones()));
    equals32("clz.b32 %r9, %r1;", |a, _, _| a.leading_zeros());
    equals32("brev.b32 %r9, %r1;", |a, _, _| a.reverse_bits());
    equals32("bfe.u32 %r9, %r1, 3, 9;", |a, _, _| a >> 3 & 511);
    equals32("bfe.s32 %r9, %r1, 5, 8;", |a, _, _| i32::from((a >> 5) as i8) as u32);
    equals32("bfi.b32 %r9, %r1, %r2, 4, 8;", |a, b, _| b & !0xFF0 | a << 4 & 0xFF0);
    equals32("prmt.b32 %r9, %r1, %r2, 0x7610U;", |a, b, _| b & 0xFFFF_0000 | a & 0xFFFF);
    equals32("prmt.b32 %r9, %r1, 0, 0x9999U;", |a, _, _| if a >> 15 & 1 == 1 { u32::MAX } else { 0 });
    equals32("shf.l.wrap.b32 %r9, %r1, %r1, %r2;", |a, b, _| a.rotate_left(b % 32));
    equals32("shf.r.clamp.b32 %r9, %r1, %r2, 40;", |_, b, _| b);
    equals32("lop3.b32 %r9, %r1, %r2, %r3, 0xE8;", |a, b, c| a & b | a & c | b & c);
    equals("mov.b64 {%r4, %r5}, %rd1;\nmov.b64 %rd9, {%r5, %r4};", |a, _, _| a.rotate_left(32));
    equals32("mov.b32 {_, %rs4}, %r1;\nmov.b32 %r9, {%rs4, %rs2};", |a, b, _| a >> 16 | b << 16);
}

/// NaN is the canonical one.
fn single(value: f32) -> u32 {
    if value.is_nan() { 0x7FFF_FFFF } else { value.to_bits() }
}

fn float(instruction: &str, expected: impl Fn(f32, f32, f32) -> f32) {
    let of = |a, b, c| single(expected(f32::from_bits(a), f32::from_bits(b), f32::from_bits(c)));
    equals32(instruction, of);
}

#[test]
fn floats_of_32_bits() {
    float("add.rn.f32 %r9, %r1, %r2;", |a, b, _| a + b);
    float("add.f32 %r9, %r1, %r2;", |a, b, _| a + b);
    float("sub.f32 %r9, %r1, 0f3F800000;", |a, _, _| a - 1.0);
    float("mul.f32 %r9, %r1, %r2;", |a, b, _| a * b);
    float("mul.rn.f32 %r9, %r1, %r2;", |a, b, _| a * b);
    float("div.rn.f32 %r9, %r1, %r2;", |a, b, _| a / b);
    float("fma.rn.f32 %r9, %r1, %r2, %r3;", f32::mul_add);
    float("sqrt.rn.f32 %r9, %r1;", |a, _, _| a.sqrt());
    float("rcp.rn.f32 %r9, %r1;", |a, _, _| 1.0 / a);
    equals32("neg.f32 %r9, %r1;", |a, _, _| a ^ 0x8000_0000);
    equals32("abs.f32 %r9, %r1;", |a, _, _| a & 0x7FFF_FFFF);
    let least = |a: f32, b: f32| if a == b { f32::from_bits(a.to_bits() | b.to_bits()) } else { a.min(b) };
    float("min.f32 %r9, %r1, %r2;", |a, b, _| least(a, b));
    float("max.f32 %r9, %r1, %r2;", |a, b, _| -least(-a, -b));
    float("max.NaN.f32 %r9, %r1, %r2;", |a, b, _| if a.is_nan() || b.is_nan() { f32::NAN } else { -least(-a, -b) });
    let flushed = |a: f32| if a.is_subnormal() { 0.0 * a } else { a };
    float("add.ftz.f32 %r9, %r1, %r2;", |a, b, _| flushed(flushed(a) + flushed(b)));
    let limited = |a: f32| if a > 0.0 { a.min(1.0) } else { 0.0 };
    float("add.sat.f32 %r9, %r1, %r2;", |a, b, _| limited(a + b));
}

#[test]
fn functions_are_rounded_once() {
    let of = |f: fn(f64) -> f64| move |a: f32, _: f32, _: f32| f(f64::from(a)) as f32;
    float("ex2.approx.ftz.f32 %r9, %r2;", |_, b, _| {
        let zero = |a: f32| if a.is_subnormal() { 0.0 * a } else { a };
        zero(f64::from(zero(b)).exp2() as f32)
    });
    float("lg2.approx.f32 %r9, %r1;", of(f64::log2));
    float("rsqrt.approx.f32 %r9, %r1;", of(|a| 1.0 / a.sqrt()));
}

/// The text that calls a function of libdevice with registers.
fn call(function: &str, bits: u8, to: &str, from: &[&str]) -> String {
    let params: Vec<String> = (0..from.len()).map(|place| format!("param{place}")).collect();
    let declared: String = params.iter().map(|param| format!(".param .b{bits} {param};\n")).collect();
    let passed = |(param, from): (&String, &&str)| format!("st.param.b{bits} [{param}], {from};\n");
    let passed: String = params.iter().zip(from).map(passed).collect();
    let params = params.join(", ");
    format!(
        "{{ // callseq\n{declared}.param .b{bits} retval0;\n{passed}call.uni (retval0), {function}, ({params});\n\
         ld.param.b{bits} {to}, [retval0];\n}}"
    )
}

type Function = fn(f64) -> f64;

const FUNCTIONS: [(&str, Function); 6] = [
    ("exp", f64::exp),
    ("log", f64::ln),
    ("tanh", f64::tanh),
    ("sin", f64::sin),
    ("cos", f64::cos),
    ("cbrt", f64::cbrt),
];

#[test]
fn functions_of_libdevice_are_the_host_s() {
    for (name, f) in FUNCTIONS {
        let of = |a: f32, _: f32, _: f32| f(f64::from(a)) as f32;
        float(&call(&format!("__nv_{name}f"), 32, "%r9", &["%r1"]), of);
        double(&call(&format!("__nv_{name}"), 64, "%rd8", &["%rd1"]), |a, _, _| f(a));
    }
    let power = |a: f32, b: f32, _: f32| f64::from(a).powf(f64::from(b)) as f32;
    float(&call("__nv_powf", 32, "%r9", &["%r1", "%r2"]), power);
    double(&call("__nv_pow", 64, "%rd8", &["%rd1", "%rd2"]), |a, b, _| a.powf(b));
}

/// Compares a function of `f64`, whose result is in `%rd8`. NaN has no canonical form here.
fn double(instruction: &str, expected: impl Fn(f64, f64, f64) -> f64) {
    let bits = |value: f64| if value.is_nan() { 1 } else { value.to_bits() };
    let body = format!("{instruction}\nsetp.nan.f64 %p1, %rd8, %rd8;\nselp.b64 %rd9, 1, %rd8, %p1;");
    equals(&body, |a, b, c| bits(expected(f64::from_bits(a), f64::from_bits(b), f64::from_bits(c))));
}

#[test]
fn floats_of_64_bits() {
    double("add.f64 %rd8, %rd1, %rd2;", |a, b, _| a + b);
    double("sub.f64 %rd8, %rd1, %rd2;", |a, b, _| a - b);
    double("mul.f64 %rd8, %rd1, %rd2;", |a, b, _| a * b);
    double("fma.rn.f64 %rd8, %rd1, %rd2, %rd3;", f64::mul_add);
    double("div.rn.f64 %rd8, %rd1, %rd2;", |a, b, _| a / b);
    double("rcp.rn.f64 %rd8, %rd1;", |a, _, _| 1.0 / a);
    double("sqrt.rn.f64 %rd8, %rd1;", |a, _, _| a.sqrt());
    double("neg.f64 %rd8, %rd1;", |a, _, _| -a);
    let largest = |a: f64, b: f64| if a == b { f64::from_bits(a.to_bits() & b.to_bits()) } else { a.max(b) };
    double("max.f64 %rd8, %rd1, %rd2;", |a, b, _| largest(a, b));
}
