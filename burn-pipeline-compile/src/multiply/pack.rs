//! Packs operands into panels of a fixed number of lanes (rows of the left operand, columns of the right one), word
//! after word along the depth.
//!
//! 1. Lanes that are contiguous in memory are copied, word by word, along a few rows of memory at a time.
//! 2. If the elements of a lane are contiguous, 16 words of 16 lanes are read at a time and transposed.
//! 3. Other operands are first copied element by element.
//! 4. What is packed next is prefetched into the L2 cache: operands were often written long before.
//!
//! Guarantees: missing lanes are 0.
//!
//! Weights are packed for each matmul, not once per step. `F` and `I` read a weight in two orders, so packing once
//! would keep two more copies during the whole step, as much as an optimizer's state. Packing takes 8 % of a step
//! with `bf16` matmuls, and weights are less than half of that.

use super::words::{LANES, Line, RUN, Words};
use crate::processor::prefetch;
use std::arch::x86_64::{
    __m512i, _mm512_setzero_si512, _mm512_shuffle_i32x4, _mm512_storeu_si512, _mm512_unpackhi_epi32,
    _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};
use std::ops::Range;

/// The elements along the depth that are copied at a time, for all lanes, so that rows of memory are read from end to
/// end. Rows a multiple of 4 KiB apart share a set of the L1 cache, which has room for 8 of them or a few more.
const COPIED: usize = 8;

/// The distance in lines of memory from one panel to the next. It leaves room for one vector more than the panel has,
/// because the last store may reach that far beyond it, and because panels then begin in different sets of the L1
/// cache.
pub(super) fn panel<const WIDTH: usize>(words: usize) -> usize {
    (WIDTH * words).div_ceil(LANES) + 1
}

/// An operand as lanes.
#[derive(Clone, Copy)]
pub(super) struct Operand<T> {
    pub(super) at: *const T,
    /// The distance from one lane to the next.
    pub(super) lane: isize,
    /// The distance from one element of a lane to the next.
    pub(super) depth: isize,
}

/// Packs numbers as words of one number.
///
/// # Safety
/// As for [`packed`], on a processor with AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn pack<W: Words, const WIDTH: usize>(
    operand: Operand<W::Element>,
    lanes: Range<usize>,
    depths: Range<usize>,
    words: usize,
    to: &mut [Line],
) {
    // SAFETY: guaranteed by the caller.
    unsafe { packed::<W, WIDTH, 1>(operand, lanes, depths, words, to) };
}

/// Packs numbers as pairs of `bf16`.
///
/// # Safety
/// As for [`packed`], on a processor with AVX512-BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) unsafe fn pack_pairs<W: Words<PARTS>, const WIDTH: usize, const PARTS: usize>(
    operand: Operand<W::Element>,
    lanes: Range<usize>,
    depths: Range<usize>,
    words: usize,
    to: &mut [Line],
) {
    // SAFETY: guaranteed by the caller.
    unsafe { packed::<W, WIDTH, PARTS>(operand, lanes, depths, words, to) };
}

/// Packs some lanes over some of the depth into panels of `WIDTH` lanes and this many words; words that are missing
/// are 0. The panels of each part follow those of the one before.
///
/// # Safety
/// The operand has these lanes and this depth; there is room for all panels; the processor supports the words.
#[inline(always)]
unsafe fn packed<W: Words<PARTS>, const WIDTH: usize, const PARTS: usize>(
    operand: Operand<W::Element>,
    lanes: Range<usize>,
    depths: Range<usize>,
    words: usize,
    to: &mut [Line],
) {
    let stride = panel::<WIDTH>(words);
    let panels = lanes.len().div_ceil(WIDTH);
    debug_assert!(to.len() >= PARTS * panels * stride, "there is room for all panels");
    let part = panels * stride * LANES;
    let each = if operand.lane == 1 { COPIED } else { depths.len() };
    for depth in (0..depths.len()).step_by(each) {
        let length = each.min(depths.len() - depth);
        for (place, first) in lanes.clone().step_by(WIDTH).enumerate() {
            let here = (lanes.end - first).min(WIDTH);
            let from = first as isize * operand.lane + (depths.start + depth) as isize * operand.depth;
            let at = Operand { at: operand.at.wrapping_offset(from), ..operand };
            // SAFETY: guaranteed by the caller. A line with fewer lanes than a vector also writes elements that are
            // overwritten later.
            unsafe {
                let to = to.as_mut_ptr().add(place * stride).cast::<u32>().add(W::GROUP.words(depth) * WIDTH);
                match operand.lane {
                    1 => copied::<W, WIDTH, PARTS>(at, here, length, to, part),
                    _ => vectors::<W, WIDTH, PARTS>(at, here, length, to, part),
                }
            }
        }
    }
    let packed = W::GROUP.words(depths.len());
    if packed < words {
        for panel in to.chunks_exact_mut(stride).take(PARTS * panels) {
            panel[packed * WIDTH / LANES..words * WIDTH / LANES].fill(Line::default());
        }
    }
}

/// Packs lanes that are contiguous.
///
/// # Safety
/// As for [`packed`].
#[inline(always)]
unsafe fn copied<W: Words<PARTS>, const WIDTH: usize, const PARTS: usize>(
    Operand { at, depth, .. }: Operand<W::Element>,
    lanes: usize,
    length: usize,
    to: *mut u32,
    part: usize,
) {
    // The same lanes of the elements that are copied after these.
    (0..length).for_each(|element| prefetch(at.wrapping_offset((element + COPIED) as isize * depth), WIDTH));
    for word in 0..W::GROUP.words(length) {
        for lane in (0..WIDTH).step_by(LANES) {
            let at = at.wrapping_add(lane);
            let of = |element: usize| (element < length).then(|| at.wrapping_offset(element as isize * depth));
            let here = lanes.saturating_sub(lane).min(LANES);
            // SAFETY: guaranteed by the caller.
            unsafe {
                for (place, words) in W::across(of, word, here).into_iter().enumerate() {
                    _mm512_storeu_si512(to.add(place * part + word * WIDTH + lane).cast(), words);
                }
            }
        }
    }
}

/// Packs lanes that are not contiguous, one vector of them after the other.
///
/// # Safety
/// As for [`packed`].
#[inline(always)]
unsafe fn vectors<W: Words<PARTS>, const WIDTH: usize, const PARTS: usize>(
    operand: Operand<W::Element>,
    lanes: usize,
    length: usize,
    to: *mut u32,
    part: usize,
) {
    for lane in (0..WIDTH).step_by(LANES) {
        let at = Operand { at: operand.at.wrapping_offset(lane as isize * operand.lane), ..operand };
        let here = lanes.saturating_sub(lane).min(LANES);
        // SAFETY: guaranteed by the caller.
        unsafe {
            match operand.depth {
                1 => turned::<W, WIDTH, PARTS>(at, here, length, to.add(lane), part),
                _ => gathered::<W, WIDTH, PARTS>(at, here, length, to.add(lane), part),
            }
        }
    }
}

/// Packs lanes with contiguous elements: transposes the words of 16 lanes.
///
/// # Safety
/// As for [`packed`].
#[inline(always)]
unsafe fn turned<W: Words<PARTS>, const WIDTH: usize, const PARTS: usize>(
    Operand { at, lane, .. }: Operand<W::Element>,
    lanes: usize,
    length: usize,
    to: *mut u32,
    part: usize,
) {
    let run = W::GROUP.elements(LANES);
    for first in (0..length).step_by(run) {
        let elements = run.min(length - first);
        // SAFETY: guaranteed by the caller.
        unsafe {
            let mut parts = [[_mm512_setzero_si512(); LANES]; PARTS];
            for place in 0..lanes.min(LANES) {
                let at = at.wrapping_offset(place as isize * lane + first as isize);
                // The same elements of the lanes after these.
                prefetch(at.wrapping_offset(WIDTH.min(LANES) as isize * lane), elements);
                for (rows, words) in parts.iter_mut().zip(W::along(at, elements)) {
                    rows[place] = words;
                }
            }
            let to = to.add(W::GROUP.words(first) * WIDTH);
            for (place, rows) in parts.into_iter().enumerate() {
                for (word, words) in transposed(rows).iter().enumerate().take(W::GROUP.words(elements)) {
                    _mm512_storeu_si512(to.add(place * part + word * WIDTH).cast(), *words);
                }
            }
        }
    }
}

/// Packs lanes that are strided, with strided elements.
///
/// # Safety
/// As for [`packed`].
#[inline(always)]
unsafe fn gathered<W: Words<PARTS>, const WIDTH: usize, const PARTS: usize>(
    Operand { at, lane, depth }: Operand<W::Element>,
    lanes: usize,
    length: usize,
    to: *mut u32,
    part: usize,
) {
    let run = W::GROUP.elements(LANES);
    for first in (0..length).step_by(run) {
        let elements = run.min(length - first);
        let mut near = [W::Element::default(); LANES * RUN];
        for place in 0..lanes {
            for step in 0..elements {
                let from = place as isize * lane + (first + step) as isize * depth;
                // SAFETY: guaranteed by the caller.
                near[place * RUN + step] = unsafe { *at.wrapping_offset(from) };
            }
        }
        let near = Operand { at: near.as_ptr(), lane: RUN as isize, depth: 1 };
        // SAFETY: as above.
        unsafe { turned::<W, WIDTH, PARTS>(near, lanes, elements, to.add(W::GROUP.words(first) * WIDTH), part) };
    }
}

/// Transposes 16 vectors of 16 words: within quarters of vectors first, then the quarters.
///
/// # Safety
/// The processor has AVX-512.
#[inline(always)]
pub(super) unsafe fn transposed(rows: [__m512i; LANES]) -> [__m512i; LANES] {
    let (mut twos, mut fours, mut halves, mut all) = (rows, rows, rows, rows);
    // SAFETY: guaranteed by the caller.
    unsafe {
        for at in (0..LANES).step_by(2) {
            twos[at] = _mm512_unpacklo_epi32(rows[at], rows[at + 1]);
            twos[at + 1] = _mm512_unpackhi_epi32(rows[at], rows[at + 1]);
        }
        for at in (0..LANES).step_by(4) {
            fours[at] = _mm512_unpacklo_epi64(twos[at], twos[at + 2]);
            fours[at + 1] = _mm512_unpackhi_epi64(twos[at], twos[at + 2]);
            fours[at + 2] = _mm512_unpacklo_epi64(twos[at + 1], twos[at + 3]);
            fours[at + 3] = _mm512_unpackhi_epi64(twos[at + 1], twos[at + 3]);
        }
        for at in 0..4 {
            halves[at] = _mm512_shuffle_i32x4::<0x88>(fours[at], fours[4 + at]);
            halves[4 + at] = _mm512_shuffle_i32x4::<0xdd>(fours[at], fours[4 + at]);
            halves[8 + at] = _mm512_shuffle_i32x4::<0x88>(fours[8 + at], fours[12 + at]);
            halves[12 + at] = _mm512_shuffle_i32x4::<0xdd>(fours[8 + at], fours[12 + at]);
        }
        for at in 0..4 {
            all[at] = _mm512_shuffle_i32x4::<0x88>(halves[at], halves[8 + at]);
            all[8 + at] = _mm512_shuffle_i32x4::<0xdd>(halves[at], halves[8 + at]);
            all[4 + at] = _mm512_shuffle_i32x4::<0x88>(halves[4 + at], halves[12 + at]);
            all[12 + at] = _mm512_shuffle_i32x4::<0xdd>(halves[4 + at], halves[12 + at]);
        }
    }
    all
}
