//! The words into which operands are packed: 32 bits, each a number or a pair of `bf16` that are neighbours along the
//! depth.
//!
//! Guarantees: rounding does not depend on the strides of the operand. Missing elements count as 0 and are not read.
//! The words of [`OneByOne`], multiplied and added in order, give the sum of the instruction for pairs, which adds the
//! second product of a pair first and takes subnormal elements as 0 (Intel's Software Developer's Manual, VDPBF16PS;
//! AMD's processors do the same).

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _CMP_UNORD_Q, _MM_PERM_CDAB, _mm256_maskz_loadu_epi16, _mm512_add_epi32,
    _mm512_and_si512, _mm512_castps_si512, _mm512_castsi512_ps, _mm512_castsi512_si256, _mm512_cmp_ps_mask,
    _mm512_cvtepu16_epi32, _mm512_cvtne2ps_pbh, _mm512_extracti64x4_epi64, _mm512_loadu_si512, _mm512_mask_or_epi32,
    _mm512_maskz_and_epi32, _mm512_maskz_loadu_epi16, _mm512_maskz_loadu_ps, _mm512_or_si512, _mm512_permutexvar_epi16,
    _mm512_set1_epi32, _mm512_setzero_si512, _mm512_shuffle_epi32, _mm512_slli_epi32, _mm512_srli_epi32, _mm512_sub_ps,
    _mm512_test_epi32_mask,
};
use std::marker::PhantomData;
use std::mem::transmute;

/// The number of words in a vector.
pub(super) const LANES: usize = 16;
/// The most elements in a vector's words.
pub(super) const RUN: usize = 32;

/// The words of a vector, aligned for the fastest loads and stores.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
pub(super) struct Line([u32; LANES]);

/// Neighbours along the depth that become words together.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Group {
    elements: usize,
    words: usize,
}

impl Group {
    /// A number in each word.
    pub(super) const NUMBER: Self = Self { elements: 1, words: 1 };
    /// Two elements in each word.
    pub(super) const PAIR: Self = Self { elements: 2, words: 1 };
    /// A number in each word, two of which belong together.
    pub(super) const TWO: Self = Self { elements: 2, words: 2 };

    /// The words of this many elements.
    pub(super) const fn words(self, elements: usize) -> usize {
        elements.div_ceil(self.elements) * self.words
    }

    /// The elements in this many words.
    pub(super) const fn elements(self, words: usize) -> usize {
        words * self.elements / self.words
    }
}

/// The conversion of an operand's elements to words, or to as many words as an element has parts.
pub(super) trait Words<const PARTS: usize = 1> {
    type Element: Copy + Default;
    const GROUP: Group;

    /// The words of contiguous elements, at most [`LANES`] words.
    ///
    /// # Safety
    /// The elements exist, and the processor has AVX-512; for pairs, AVX512-BF16.
    unsafe fn along(at: *const Self::Element, elements: usize) -> [__m512i; PARTS];

    /// One word for each of some contiguous lanes. `of` says where the first lane's elements are, by their index along
    /// the depth; `None` after the last.
    ///
    /// # Safety
    /// As for `along`.
    unsafe fn across(of: impl Fn(usize) -> Option<*const Self::Element>, word: usize, lanes: usize)
    -> [__m512i; PARTS];
}

/// Numbers that stay unchanged.
pub(super) struct Plain;
/// Pairs of numbers that are rounded here; further parts are what the parts before them leave, rounded.
pub(super) struct Rounding;
/// Pairs of numbers that were rounded before.
pub(super) struct Rounded;
/// Numbers that are rounded here (`f32`), or were rounded before (`u16`): each pair as two words, the second first.
pub(super) struct OneByOne<E>(PhantomData<E>);

/// A mask of the lowest bits of 16.
#[inline(always)]
pub(super) fn first(count: usize) -> u16 {
    (u32::from(u16::MAX) >> (LANES - count.min(LANES))) as u16
}

impl Words for Plain {
    type Element = f32;
    const GROUP: Group = Group::NUMBER;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn along(at: *const f32, elements: usize) -> [__m512i; 1] {
        // SAFETY: guaranteed by the caller.
        [_mm512_castps_si512(unsafe { _mm512_maskz_loadu_ps(first(elements), at) })]
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn across(of: impl Fn(usize) -> Option<*const f32>, word: usize, lanes: usize) -> [__m512i; 1] {
        let Some(at) = of(word) else { return [_mm512_setzero_si512()] };
        // SAFETY: guaranteed by the caller.
        unsafe { Self::along(at, lanes) }
    }
}

impl<const PARTS: usize> Words<PARTS> for Rounding {
    type Element = f32;
    const GROUP: Group = Group::PAIR;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn along(at: *const f32, elements: usize) -> [__m512i; PARTS] {
        let after = elements.saturating_sub(LANES);
        // SAFETY: guaranteed by the caller; masked-out elements are not read.
        let [mut low, mut high] = unsafe {
            let low = _mm512_maskz_loadu_ps(first(elements), at);
            [low, _mm512_maskz_loadu_ps(first(after), at.wrapping_add(LANES))]
        };
        std::array::from_fn(|part| {
            let rounded = bits(_mm512_cvtne2ps_pbh(high, low));
            if part + 1 < PARTS {
                low = without(low, _mm512_cvtepu16_epi32(_mm512_castsi512_si256(rounded)));
                high = without(high, _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64::<1>(rounded)));
            }
            rounded
        })
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn across(of: impl Fn(usize) -> Option<*const f32>, word: usize, lanes: usize) -> [__m512i; PARTS] {
        let Some(at) = of(2 * word) else { return [_mm512_setzero_si512(); PARTS] };
        let next = of(2 * word + 1);
        // SAFETY: guaranteed by the caller; the table is as long as a vector.
        let (mut even, mut odd, turns) = unsafe {
            let odd = _mm512_maskz_loadu_ps(next.map_or(0, |_| first(lanes)), next.unwrap_or(at));
            (_mm512_maskz_loadu_ps(first(lanes), at), odd, _mm512_loadu_si512(TURNS.as_ptr().cast()))
        };
        std::array::from_fn(|part| {
            let rounded = _mm512_permutexvar_epi16(turns, bits(_mm512_cvtne2ps_pbh(odd, even)));
            if part + 1 < PARTS {
                even = without(even, rounded);
                odd = without(odd, _mm512_srli_epi32::<16>(rounded));
            }
            rounded
        })
    }
}

impl Words for Rounded {
    type Element = u16;
    const GROUP: Group = Group::PAIR;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn along(at: *const u16, elements: usize) -> [__m512i; 1] {
        // SAFETY: guaranteed by the caller.
        [unsafe { _mm512_maskz_loadu_epi16((u64::from(u32::MAX) >> (RUN - elements.min(RUN))) as u32, at.cast()) }]
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn across(of: impl Fn(usize) -> Option<*const u16>, word: usize, lanes: usize) -> [__m512i; 1] {
        let Some(at) = of(2 * word) else { return [_mm512_setzero_si512()] };
        let next = of(2 * word + 1);
        // SAFETY: guaranteed by the caller.
        let [even, odd] = unsafe {
            let odd = _mm256_maskz_loadu_epi16(next.map_or(0, |_| first(lanes)), next.unwrap_or(at).cast());
            [_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first(lanes), at.cast())), _mm512_cvtepu16_epi32(odd)]
        };
        [_mm512_or_si512(even, _mm512_slli_epi32::<16>(odd))]
    }
}

impl Words for OneByOne<f32> {
    type Element = f32;
    const GROUP: Group = Group::TWO;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn along(at: *const f32, elements: usize) -> [__m512i; 1] {
        // SAFETY: guaranteed by the caller.
        [unsafe { swapped(rounded(_mm512_maskz_loadu_ps(first(elements), at))) }]
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn across(of: impl Fn(usize) -> Option<*const f32>, word: usize, lanes: usize) -> [__m512i; 1] {
        let Some(at) = of(word ^ 1) else { return [_mm512_setzero_si512()] };
        // SAFETY: guaranteed by the caller.
        [rounded(unsafe { _mm512_maskz_loadu_ps(first(lanes), at) })]
    }
}

impl Words for OneByOne<u16> {
    type Element = u16;
    const GROUP: Group = Group::TWO;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn along(at: *const u16, elements: usize) -> [__m512i; 1] {
        // SAFETY: guaranteed by the caller.
        [unsafe { swapped(widened(at, elements)) }]
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn across(of: impl Fn(usize) -> Option<*const u16>, word: usize, lanes: usize) -> [__m512i; 1] {
        let Some(at) = of(word ^ 1) else { return [_mm512_setzero_si512()] };
        // SAFETY: guaranteed by the caller.
        [unsafe { widened(at, lanes) }]
    }
}

/// The bits of an infinite `f32`: its exponent, which is 0 if the number is subnormal or 0.
const EXPONENT: i32 = 0x7f80_0000;
/// The bits of an `f32` that a `bf16` has.
const UPPER: i32 = !0xffff;
/// The bit that makes a NaN quiet.
const QUIET: i32 = 0x0040_0000;

/// Numbers rounded to `bf16`, to nearest, ties to even; subnormal ones become 0.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn rounded(numbers: __m512) -> __m512i {
    let bits = _mm512_castps_si512(numbers);
    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    let nearest = _mm512_add_epi32(bits, half);
    let nans = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(numbers, numbers);
    let nearest = _mm512_mask_or_epi32(nearest, nans, bits, _mm512_set1_epi32(QUIET));
    let normal = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(EXPONENT));
    _mm512_maskz_and_epi32(normal, nearest, _mm512_set1_epi32(UPPER))
}

/// At most 16 elements as `f32`; subnormal ones become 0.
///
/// # Safety
/// The elements exist.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn widened(at: *const u16, elements: usize) -> __m512i {
    // SAFETY: guaranteed by the caller.
    let words = unsafe { _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first(elements), at.cast())) };
    let bits = _mm512_slli_epi32::<16>(words);
    let normal = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(EXPONENT));
    _mm512_maskz_and_epi32(normal, bits, _mm512_set1_epi32(UPPER))
}

/// Each pair of words with its second word first.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn swapped(words: __m512i) -> __m512i {
    _mm512_shuffle_epi32::<_MM_PERM_CDAB>(words)
}

/// What is left of numbers without their rounded values, which are the lower half of each word.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn without(numbers: __m512, rounded: __m512i) -> __m512 {
    _mm512_sub_ps(numbers, _mm512_castsi512_ps(_mm512_slli_epi32::<16>(rounded)))
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
