//! Bytes and fields of bits.

use super::code::Width;

/// `prmt`: each byte of the result is one of the 8 bytes of `b:a`, or its sign repeated.
pub fn permute(a: u32, b: u32, by: u32) -> u32 {
    let bytes = u64::from(b) << 32 | u64::from(a);
    (0..4).fold(0, |result, place| {
        let pick = by >> (4 * place) & 15;
        let byte = (bytes >> (8 * (pick & 7))) as u8;
        let byte = if pick & 8 == 0 { byte } else { (byte as i8 >> 7) as u8 };
        result | u32::from(byte) << (8 * place)
    })
}

/// `shf`: the upper half of `b:a` shifted left, or the lower half of it shifted right.
pub fn funnel(left: bool, clamps: bool, a: u32, b: u32, by: u32) -> u32 {
    let by = if clamps { by.min(32) } else { by & 31 };
    let both = u64::from(b) << 32 | u64::from(a);
    if left { (both << by >> 32) as u32 } else { (both >> by) as u32 }
}

/// `bfe`: `length` bits from `start` on. A signed field is extended by its highest bit, or the value's.
pub fn extract(width: Width, signed: bool, value: u64, start: u32, length: u32) -> u64 {
    let (bits, start, length) = (width.bits(), start & 255, length & 255);
    if length == 0 {
        return 0;
    }
    let sign = signed && value >> (start + length - 1).min(bits - 1) & 1 == 1;
    let field = value.checked_shr(start).unwrap_or(0);
    let kept = if length >= 64 { u64::MAX } else { (1 << length) - 1 };
    // Bits beyond the value are the sign's.
    let known = if start >= bits { 0 } else { kept & (u64::MAX >> (64 - (bits - start))) };
    let result = field & known | if sign { !known } else { 0 };
    result & (u64::MAX >> (64 - bits))
}

/// `bfi`: the low `length` bits of `value` put into `base` from `start` on.
pub fn insert(width: Width, value: u64, base: u64, start: u32, length: u32) -> u64 {
    let (bits, start, length) = (width.bits(), start & 255, length & 255);
    if start >= bits || length == 0 {
        return base;
    }
    let mask = (if length >= 64 { u64::MAX } else { (1 << length) - 1 }) << start & (u64::MAX >> (64 - bits));
    base & !mask | value << start & mask
}

/// `lop3`: any function of three bits, by its table.
pub fn logic(table: u8, a: u32, b: u32, c: u32) -> u32 {
    (0..8).filter(|row| table >> row & 1 == 1).fold(0, |result, row| {
        let of = |value: u32, bit: u32| if row & bit == 0 { !value } else { value };
        result | of(a, 4) & of(b, 2) & of(c, 1)
    })
}
