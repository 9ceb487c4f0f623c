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
/// elements along the depth have a line of memory for each lane. Missing elements are 0. The panels of each part follow
/// those of the one before.
///
/// # Safety
/// The operand has these lanes and this depth; there is room for all panels; the processor has AVX512-BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) unsafe fn pack_rows<W: Words<PARTS>, const PARTS: usize>(
    operand: Operand<W::Element>,
    lanes: Range<usize>,
    depths: Range<usize>,
    to: &mut [Line],
) {
    let stride = panel::<ROWS>(depths.len().div_ceil(RUN) * LANES);
    let part = lanes.len().div_ceil(ROWS) * stride;
    debug_assert!(to.len() >= PARTS * part, "there is room for all panels");
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
                    let mut parts = [[_mm512_setzero_si512(); LANES]; PARTS];
                    for word in 0..LANES {
                        let across = W::across(of, word, here);
                        parts.iter_mut().zip(across).for_each(|(words, across)| words[word] = across);
                    }
                    for (place, words) in parts.into_iter().enumerate() {
                        for (row, words) in transposed(words).into_iter().enumerate() {
                            _mm512_storeu_si512(line(lane + row, step).add(place * part).cast(), words);
                        }
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
                for (place, words) in W::along(at, elements).into_iter().enumerate() {
                    _mm512_storeu_si512(line(lane, step).add(place * part).cast(), words);
                }
            }
        }
    }
}
