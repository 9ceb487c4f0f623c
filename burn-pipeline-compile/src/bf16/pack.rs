//! Operands rounded and packed: panels of 16 lanes (rows of the left operand, columns of the right one), pair after pair along the depth.
//!
//! Guarantees: an element is rounded in the same way however the operand lies. Lanes and halves of pairs that are not there are 0.

use std::arch::x86_64::{
    __m512bh, __m512i, _mm256_loadu_si256, _mm512_cvtepu16_epi32, _mm512_cvtne2ps_pbh, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_or_si512, _mm512_permutexvar_epi16, _mm512_setzero_si512, _mm512_shuffle_i32x4,
    _mm512_slli_epi32, _mm512_store_si512, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32,
    _mm512_unpacklo_epi64,
};
use std::ops::Range;

/// Lanes of a panel.
pub(super) const LANES: usize = 16;
/// Elements along the depth that are packed at once: 16 pairs.
const RUN: usize = 32;

/// One pair of each lane of a panel.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Line([u32; LANES]);

/// An operand as lanes.
#[derive(Clone, Copy)]
pub(super) struct Operand<T> {
    pub(super) at: *const T,
    /// From one lane to the next.
    pub(super) lane: isize,
    /// From one element of a lane to the next.
    pub(super) depth: isize,
}

/// What operands are made of.
pub(super) trait Element: Copy + Default {
    /// Pairs of 32 elements that follow each other.
    ///
    /// # Safety
    /// The elements are there, and the processor has AVX512-BF16.
    unsafe fn along(at: *const Self) -> __m512i;

    /// A pair for each of 16 lanes that follow each other, from two places of the depth.
    ///
    /// # Safety
    /// As for `along`.
    unsafe fn across(even: *const Self, odd: *const Self) -> __m512i;
}

impl Element for f32 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn along(at: *const Self) -> __m512i {
        // SAFETY: the caller's promise.
        bits(unsafe { _mm512_cvtne2ps_pbh(_mm512_loadu_ps(at.add(LANES)), _mm512_loadu_ps(at)) })
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn across(even: *const Self, odd: *const Self) -> __m512i {
        // SAFETY: the caller's promise.
        let one_after_the_other = bits(unsafe { _mm512_cvtne2ps_pbh(_mm512_loadu_ps(odd), _mm512_loadu_ps(even)) });
        // SAFETY: the table is as long as a vector.
        let places = unsafe { _mm512_loadu_si512(TURNS.as_ptr().cast()) };
        _mm512_permutexvar_epi16(places, one_after_the_other)
    }
}

/// 0, 16, 1, 17, and so on.
const TURNS: [u16; RUN] = {
    let mut turns = [0; RUN];
    let mut lane = 0;
    while lane < LANES {
        turns[2 * lane] = lane as u16;
        turns[2 * lane + 1] = (lane + LANES) as u16;
        lane += 1;
    }
    turns
};

impl Element for u16 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn along(at: *const Self) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_si512(at.cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn across(even: *const Self, odd: *const Self) -> __m512i {
        // SAFETY: the caller's promise.
        let [even, odd] = [even, odd].map(|at| _mm512_cvtepu16_epi32(unsafe { _mm256_loadu_si256(at.cast()) }));
        _mm512_or_si512(even, _mm512_slli_epi32::<16>(odd))
    }
}

fn bits(pairs: __m512bh) -> __m512i {
    // SAFETY: both are 512 bits, of which all values are valid.
    unsafe { std::mem::transmute::<__m512bh, __m512i>(pairs) }
}

/// Packs some lanes over some of the depth, panel after panel.
///
/// # Safety
/// The operand has these lanes and this depth; there is room for all panels; the processor has AVX512-BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn pack<T: Element>(operand: Operand<T>, lanes: Range<usize>, depths: Range<usize>, to: &mut [Line]) {
    let pairs = depths.len().div_ceil(2);
    for (panel, to) in to.chunks_mut(pairs).enumerate() {
        let first = lanes.start + panel * LANES;
        let here = LANES.min(lanes.end - first);
        for (run, to) in to.chunks_mut(LANES).enumerate() {
            let depth = depths.start + run * RUN;
            let length = RUN.min(depths.end - depth);
            // SAFETY: the caller's promise; a run is within the depths, and lanes are the operand's.
            unsafe {
                let at = operand.at.offset(first as isize * operand.lane + depth as isize * operand.depth);
                packed(Operand { at, ..operand }, here, length, to);
            }
        }
    }
}

/// Packs a run of the depth of one panel.
///
/// # Safety
/// As for [`pack`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn packed<T: Element>(operand: Operand<T>, lanes: usize, length: usize, to: &mut [Line]) {
    let Operand { at, lane, depth } = operand;
    // SAFETY: the caller's promise; whole runs of whole panels are read directly, others element by element into `copied`.
    unsafe {
        match (lane, depth) {
            (1, _) if lanes == LANES => {
                let none = [T::default(); LANES];
                for (pair, to) in to.iter_mut().enumerate() {
                    let even = at.offset(2 * pair as isize * depth);
                    let odd = if 2 * pair + 1 < length { even.offset(depth) } else { none.as_ptr() };
                    store(to, T::across(even, odd));
                }
            }
            (_, 1) if lanes == LANES && length == RUN => turned(at, lane, to),
            _ => {
                let mut copied = [T::default(); LANES * RUN];
                for place in 0..lanes {
                    for step in 0..length {
                        copied[place * RUN + step] = *at.offset(place as isize * lane + step as isize * depth);
                    }
                }
                turned(copied.as_ptr(), RUN as isize, to);
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store(to: &mut Line, pairs: __m512i) {
    // SAFETY: a line is a vector's size, and aligned so.
    unsafe { _mm512_store_si512(std::ptr::from_mut(to).cast(), pairs) };
}

/// Packs 16 lanes whose 32 elements follow each other: their pairs, turned.
///
/// # Safety
/// The elements are there, and the processor has AVX512-BF16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn turned<T: Element>(at: *const T, lane: isize, to: &mut [Line]) {
    let mut lanes = [_mm512_setzero_si512(); LANES];
    for (place, pairs) in lanes.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *pairs = unsafe { T::along(at.offset(place as isize * lane)) };
    }
    for (to, pairs) in to.iter_mut().zip(transposed(lanes)) {
        // SAFETY: the caller's promise.
        unsafe { store(to, pairs) };
    }
}

/// 16 vectors of 16 numbers, turned: within quarters of vectors first, then the quarters.
#[inline]
#[target_feature(enable = "avx512f")]
fn transposed(rows: [__m512i; LANES]) -> [__m512i; LANES] {
    let mut twos = rows;
    for at in (0..LANES).step_by(2) {
        twos[at] = _mm512_unpacklo_epi32(rows[at], rows[at + 1]);
        twos[at + 1] = _mm512_unpackhi_epi32(rows[at], rows[at + 1]);
    }
    let mut fours = twos;
    for at in (0..LANES).step_by(4) {
        fours[at] = _mm512_unpacklo_epi64(twos[at], twos[at + 2]);
        fours[at + 1] = _mm512_unpackhi_epi64(twos[at], twos[at + 2]);
        fours[at + 2] = _mm512_unpacklo_epi64(twos[at + 1], twos[at + 3]);
        fours[at + 3] = _mm512_unpackhi_epi64(twos[at + 1], twos[at + 3]);
    }
    let (mut halves, mut all) = (fours, fours);
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
    all
}
