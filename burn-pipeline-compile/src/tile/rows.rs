//! Reductions of rows to one value, and additions of rows to rows.
//!
//! Guarantees: the order of additions depends on the number of elements alone, not on the processor. Element `i` goes
//! into lane `i` mod 32, and lanes are added by halves.

use super::math::{at_least, at_most};
use crate::graph::Reduction;

const LANES: usize = 32;

#[inline(always)]
fn lanes(row: &[f32], start: f32, join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [start; LANES];
    let (pieces, rest) = row.as_chunks::<LANES>();
    for piece in pieces {
        for lane in 0..LANES {
            lanes[lane] = join(lanes[lane], piece[lane]);
        }
    }
    for (lane, value) in rest.iter().enumerate() {
        lanes[lane] = join(lanes[lane], *value);
    }
    // Arrays of known sizes, so that halves are added as vectors.
    macro_rules! half {
        ($from:expr, $size:literal) => {{
            let mut to = [0.0; $size];
            for lane in 0..$size {
                to[lane] = join($from[lane], $from[lane + $size]);
            }
            to
        }};
    }
    let lanes = half!(lanes, 16);
    let lanes = half!(lanes, 8);
    let lanes = half!(lanes, 4);
    join(join(lanes[0], lanes[2]), join(lanes[1], lanes[3]))
}

/// Reduces a row to one value.
#[inline(always)]
pub(crate) fn reduced(reduction: Reduction, row: &[f32]) -> f32 {
    match reduction {
        Reduction::Sum => lanes(row, 0.0, |x, y| x + y),
        Reduction::Max => lanes(row, f32::NEG_INFINITY, at_least),
        Reduction::Min => lanes(row, f32::INFINITY, at_most),
    }
}

/// Adds a row to another one.
#[inline(always)]
pub(crate) fn add(to: &mut [f32], row: &[f32]) {
    for (to, value) in to.iter_mut().zip(row) {
        *to += value;
    }
}
