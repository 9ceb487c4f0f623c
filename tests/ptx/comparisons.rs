//! Comparisons, selections and predicates, over all types.

use crate::{equals, equals32};

const FLOATS: [&str; 14] = ["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"];
const SIGNED: [&str; 6] = ["eq", "ne", "lt", "le", "gt", "ge"];
/// `lo` and the like are other names for comparisons of unsigned integers.
const UNSIGNED: [&str; 10] = ["eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"];

/// The definition of the PTX ISA: ordered comparisons are false for NaN, unordered ones (`u`) are true.
fn holds<T: PartialOrd>(name: &str, a: T, b: T) -> bool {
    let unordered = a.partial_cmp(&b).is_none();
    match name {
        "eq" => a == b,
        "ne" => !unordered && a != b,
        "lt" | "lo" => a < b,
        "le" | "ls" => a <= b,
        "gt" | "hi" => a > b,
        "ge" | "hs" => a >= b,
        "num" => !unordered,
        "nan" => unordered,
        _ => unordered || holds(&name[..2], a, b),
    }
}

/// Compares the registers `a` and `b`.
fn check(name: &str, kind: &str, [a, b]: [&str; 2], expected: impl Fn(u64, u64) -> bool) {
    let body = format!("setp.{name}.{kind} %p1, {a}, {b};\nselp.b64 %rd9, 1, 0, %p1;");
    equals(&body, |a, b, _| u64::from(expected(a, b)));
}

const SHORT: [&str; 2] = ["%rs1", "%rs2"];
const SINGLE: [&str; 2] = ["%r1", "%r2"];
const DOUBLE: [&str; 2] = ["%rd1", "%rd2"];

#[test]
fn comparisons_of_floats() {
    for name in FLOATS {
        check(name, "f32", SINGLE, |a, b| holds(name, f32::from_bits(a as u32), f32::from_bits(b as u32)));
        check(name, "f64", DOUBLE, |a, b| holds(name, f64::from_bits(a), f64::from_bits(b)));
    }
}

#[test]
fn comparisons_of_integers() {
    for name in SIGNED {
        check(name, "s16", SHORT, |a, b| holds(name, a as i16, b as i16));
        check(name, "s32", SINGLE, |a, b| holds(name, a as i32, b as i32));
        check(name, "s64", DOUBLE, |a, b| holds(name, a as i64, b as i64));
    }
    for name in UNSIGNED {
        check(name, "u16", SHORT, |a, b| holds(name, a as u16, b as u16));
        check(name, "u32", SINGLE, |a, b| holds(name, a as u32, b as u32));
        check(name, "u64", DOUBLE, |a, b| holds(name, a, b));
    }
    for name in ["eq", "ne"] {
        check(name, "b16", SHORT, |a, b| holds(name, a as u16, b as u16));
        check(name, "b32", SINGLE, |a, b| holds(name, a as u32, b as u32));
        check(name, "b64", DOUBLE, |a, b| holds(name, a, b));
    }
}

#[test]
fn a_comparison_is_joined_with_a_predicate() {
    type Join = fn(bool, bool) -> bool;
    let joins: [(&str, Join); 3] = [("and", |a, b| a && b), ("or", |a, b| a || b), ("xor", |a, b| a != b)];
    for (name, join) in joins {
        let expected = |a: u32, b: u32, _| u32::from(join((a as i32) > (b as i32), a < b));
        let first = "setp.gt.s32 %p1, %r1, %r2;";
        equals32(&format!("{first}\nsetp.lo.{name}.u32 %p2, %r1, %r2, %p1;\nselp.b32 %r9, 1, 0, %p2;"), expected);
        let second = "setp.lt.u32 %p2, %r1, %r2;";
        equals32(&format!("{first}\n{second}\n{name}.pred %p3, %p1, %p2;\nselp.b32 %r9, 1, 0, %p3;"), expected);
    }
    let body = "setp.lt.s16 %p1, %rs1, %rs2;\nnot.pred %p2, %p1;\nmov.pred %p3, %p2;\nselp.b32 %r9, 1, 0, %p3;";
    equals32(body, |a, b, _| u32::from((a as i16) >= (b as i16)));
}

#[test]
fn selections_of_every_type() {
    for kind in ["b32", "u32", "s32", "f32"] {
        let body = format!("setp.lt.u32 %p1, %r1, %r2;\nselp.{kind} %r9, %r2, %r3, %p1;");
        equals32(&body, |a, b, c| if a < b { b } else { c });
    }
    for kind in ["b64", "u64", "f64"] {
        let body = format!("setp.lt.u64 %p1, %rd1, %rd2;\nselp.{kind} %rd9, %rd2, %rd3, %p1;");
        equals(&body, |a, b, c| if a < b { b } else { c });
    }
    let body = "setp.lt.u32 %p1, %r1, %r2;\nselp.b16 %rs9, %rs2, %rs3, %p1;\ncvt.u64.u16 %rd9, %rs9;";
    equals(body, |a, b, c| if (a as u32) < b as u32 { b & 0xFFFF } else { c & 0xFFFF });
}
