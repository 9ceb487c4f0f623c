//! Packs the left operand of matrix tiles: a tile has 16 rows, each with 32 elements along the depth.
//!
//! 1. If the elements of a row are contiguous, they are copied.
//! 2. If rows are contiguous, 16 words of 16 rows are read at a time and transposed.
//! 3. Elements of other operands are first copied one by one.

use super::pack::{Operand, panel, transposed};
use super::words::{LANES, Line, RUN, Words};
use std::arch::x86_64::{_mm512_setzero_si512, _mm512_storeu_si512};
use std::ops::Range;

/// The lanes of a panel of rows for matrix tiles.
const ROWS: usize = 32;

/// Packs some lanes over some of the depth for matrix tiles, as pairs of `bf16`: panels of 32 lanes, in which each 32
/// elements along the depth have a line of memory for each lane. Missing elements are 0.
///
/// # Safety
/// The operand has these lanes and this depth; there is room for all panels; the processor has AVX512-BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) unsafe fn pack_rows<W: Words>(
    operand: Operand<W::Element>,
    lanes: Range<usize>,
    depths: Range<usize>,
    to: &mut [Line],
) {
    let stride = panel::<ROWS>(depths.len().div_ceil(RUN) * LANES);
    debug_assert!(to.len() >= lanes.len().div_ceil(ROWS) * stride, "there is room for all panels");
    let at = |lane: usize, depth: usize| {
        let (lane, depth) = ((lanes.start + lane) as isize, (depths.start + depth) as isize);
        operand.at.wrapping_offset(lane * operand.lane + depth * operand.depth)
    };
    let steps = || (0..depths.len()).step_by(RUN).enumerate();
    let to = to.as_mut_ptr();
    let line = |lane: usize, step: usize| to.wrapping_add(lane / ROWS * stride + step * ROWS + lane % ROWS);
    if operand.lane == 1 {
        for (step, depth) in steps() {
            for lane in (0..lanes.len().next_multiple_of(ROWS)).step_by(LANES) {
                let here = lanes.len().saturating_sub(lane).min(LANES);
                let of = |element: usize| (depth + element < depths.len()).then(|| at(lane, depth + element));
                // SAFETY: guaranteed by the caller.
                unsafe {
                    let mut words = [_mm512_setzero_si512(); LANES];
                    words.iter_mut().enumerate().for_each(|(place, words)| *words = W::across(of, place, here));
                    for (place, words) in transposed(words).into_iter().enumerate() {
                        _mm512_storeu_si512(line(lane + place, step).cast(), words);
                    }
                }
            }
        }
        return;
    }
    for lane in 0..lanes.len().next_multiple_of(ROWS) {
        for (step, depth) in steps() {
            let elements = if lane < lanes.len() { RUN.min(depths.len() - depth) } else { 0 };
            let mut near = [W::Element::default(); RUN];
            // SAFETY: guaranteed by the caller.
            unsafe {
                let at = match operand.depth {
                    1 => at(lane, depth),
                    _ => {
                        (0..elements).for_each(|element| near[element] = *at(lane, depth + element));
                        near.as_ptr()
                    }
                };
                _mm512_storeu_si512(line(lane, step).cast(), W::along(at, elements));
            }
        }
    }
}
