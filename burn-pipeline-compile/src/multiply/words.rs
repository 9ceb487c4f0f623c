//! The words into which operands are packed: 32 bits, each a number or a pair of `bf16` that are neighbours along the
//! depth.
//!
//! Guarantees: rounding does not depend on the strides of the operand. Missing elements count as 0 and are not read.

use std::arch::x86_64::{
    __m512bh, __m512i, _mm256_maskz_loadu_epi16, _mm512_castps_si512, _mm512_cvtepu16_epi32, _mm512_cvtne2ps_pbh,
    _mm512_loadu_si512, _mm512_maskz_loadu_epi16, _mm512_maskz_loadu_ps, _mm512_or_si512, _mm512_permutexvar_epi16,
    _mm512_slli_epi32,
};
use std::mem::transmute;

/// The number of words in a vector.
pub(super) const LANES: usize = 16;
/// The most elements in a vector's words.
pub(super) const RUN: usize = 32;

/// The words of a vector, aligned for the fastest loads and stores.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
pub(super) struct Line([u32; LANES]);

/// The conversion of an operand's elements to words.
pub(super) trait Words {
    type Element: Copy + Default;
    /// The number of elements in a word.
    const ELEMENTS: usize;

    /// The words of contiguous elements, at most [`LANES`] words.
    ///
    /// # Safety
    /// The elements exist, and the processor has AVX-512; for rounding, AVX512-BF16.
    unsafe fn along(at: *const Self::Element, elements: usize) -> __m512i;

    /// One word for each of some contiguous lanes, from one index of the depth and, if a word has two elements, from
    /// the index at `next`.
    ///
    /// # Safety
    /// As for `along`.
    unsafe fn across(at: *const Self::Element, next: Option<*const Self::Element>, lanes: usize) -> __m512i;
}

/// Numbers that stay unchanged.
pub(super) struct Plain;
/// Numbers that are rounded here.
pub(super) struct Rounding;
/// Numbers that were rounded before.
pub(super) struct Rounded;

/// A mask of the lowest bits of 16.
#[inline(always)]
pub(super) fn first(count: usize) -> u16 {
    (u32::from(u16::MAX) >> (LANES - count.min(LANES))) as u16
}

impl Words for Plain {
    type Element = f32;
    const ELEMENTS: usize = 1;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn along(at: *const f32, elements: usize) -> __m512i {
        // SAFETY: guaranteed by the caller.
        _mm512_castps_si512(unsafe { _mm512_maskz_loadu_ps(first(elements), at) })
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn across(at: *const f32, _: Option<*const f32>, lanes: usize) -> __m512i {
        // SAFETY: guaranteed by the caller.
        unsafe { Self::along(at, lanes) }
    }
}

impl Words for Rounding {
    type Element = f32;
    const ELEMENTS: usize = 2;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn along(at: *const f32, elements: usize) -> __m512i {
        let after = elements.saturating_sub(LANES);
        // SAFETY: guaranteed by the caller; masked-out elements are not read.
        unsafe {
            let low = _mm512_maskz_loadu_ps(first(elements), at);
            bits(_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(first(after), at.wrapping_add(LANES)), low))
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn across(at: *const f32, next: Option<*const f32>, lanes: usize) -> __m512i {
        // SAFETY: guaranteed by the caller; the table is as long as a vector.
        unsafe {
            let odd = _mm512_maskz_loadu_ps(next.map_or(0, |_| first(lanes)), next.unwrap_or(at));
            let one_after_the_other = bits(_mm512_cvtne2ps_pbh(odd, _mm512_maskz_loadu_ps(first(lanes), at)));
            _mm512_permutexvar_epi16(_mm512_loadu_si512(TURNS.as_ptr().cast()), one_after_the_other)
        }
    }
}

impl Words for Rounded {
    type Element = u16;
    const ELEMENTS: usize = 2;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn along(at: *const u16, elements: usize) -> __m512i {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm512_maskz_loadu_epi16(u32::MAX >> (RUN - elements.min(RUN)), at.cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn across(at: *const u16, next: Option<*const u16>, lanes: usize) -> __m512i {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let even = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first(lanes), at.cast()));
            let Some(next) = next else { return even };
            let odd = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first(lanes), next.cast()));
            _mm512_or_si512(even, _mm512_slli_epi32::<16>(odd))
        }
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

#[inline(always)]
fn bits(pairs: __m512bh) -> __m512i {
    // SAFETY: both are 512 bits wide, and all bit patterns are valid.
    unsafe { transmute::<__m512bh, __m512i>(pairs) }
}
