//! Computes a tile of a matmul, at most 12 rows and 32 columns, with its sums in registers over the depth of a block.
//!
//! 1. For each word along the depth, one or two vectors of columns are loaded. The word of each row is broadcast,
//!    multiplied with them and added to the row's sums: by fused multiply-add, or in pairs of `bf16` by `vdpbf16ps`.
//!    [`OneByOne`] gives a pair's bits by two fused multiply-adds, unless a partial sum is subnormal, which the
//!    instruction takes as 0.
//! 2. The sums are written or added to the target, under a mask if columns are missing.

use super::words::{Group, LANES, first};
use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _MM_HINT_T0, _mm_prefetch, _mm512_add_ps, _mm512_castsi512_ps, _mm512_dpbf16_ps,
    _mm512_fmadd_ps, _mm512_loadu_si512, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_set1_epi32,
    _mm512_setzero_ps,
};
use std::mem::transmute;

/// The rows of a tile, and the lanes of a panel of rows.
pub(super) const ROWS: usize = 12;
/// The columns of a tile, and the lanes of a panel of columns: two vectors. The kernel uses 26 of 32 registers.
pub(super) const COLUMNS: usize = 2 * LANES;

/// The words along the depth that are multiplied between two jumps.
const UNROLLED: usize = 4;

/// The left operand's words for a tile.
#[derive(Clone, Copy)]
pub(super) enum Left {
    /// A packed panel.
    Packed(*const u32),
    /// Rows in memory, each with contiguous words, and the stride from one row to the next.
    Rows(*const u32, isize),
}

/// The target of a tile: rows with contiguous elements.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub(super) at: *mut f32,
    pub(super) row: isize,
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// True if the matmul is added to the target.
    pub(super) add: bool,
}

impl Left {
    /// The words from this row of a panel on.
    pub(super) fn at_row(self, row: usize) -> Self {
        match self {
            Self::Packed(at) => Self::Packed(at.wrapping_add(row)),
            Self::Rows(at, stride) => Self::Rows(at.wrapping_offset(row as isize * stride), stride),
        }
    }
}

/// How words are multiplied.
pub(super) trait Multiply {
    /// The elements that are packed together.
    const GROUP: Group;

    /// Adds the products of words to sums.
    ///
    /// # Safety
    /// The processor has the instruction.
    unsafe fn add(sums: __m512, left: __m512i, right: __m512i) -> __m512;

    /// [`tile`], compiled for the processor.
    ///
    /// # Safety
    /// As for [`tile`].
    unsafe fn tile<const R: usize, const V: usize>(words: usize, left: Left, right: *const u32, to: Target);
}

/// 32-bit numbers: AVX-512.
pub(super) struct Numbers;
/// Pairs of `bf16`: AVX512-BF16.
pub(super) struct Pairs;
/// Numbers rounded to `bf16`, in the order in which [`Pairs`] adds them: AVX-512.
pub(super) struct OneByOne;

impl Multiply for Numbers {
    const GROUP: Group = Group::NUMBER;

    #[inline(always)]
    unsafe fn add(sums: __m512, left: __m512i, right: __m512i) -> __m512 {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm512_fmadd_ps(_mm512_castsi512_ps(left), _mm512_castsi512_ps(right), sums) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn tile<const R: usize, const V: usize>(words: usize, left: Left, right: *const u32, to: Target) {
        // SAFETY: guaranteed by the caller.
        unsafe { tile::<Self, R, V>(words, left, right, to) };
    }
}

impl Multiply for OneByOne {
    const GROUP: Group = Group::TWO;

    #[inline(always)]
    unsafe fn add(sums: __m512, left: __m512i, right: __m512i) -> __m512 {
        // SAFETY: guaranteed by the caller.
        unsafe { Numbers::add(sums, left, right) }
    }

    #[inline(always)]
    unsafe fn tile<const R: usize, const V: usize>(words: usize, left: Left, right: *const u32, to: Target) {
        // SAFETY: guaranteed by the caller.
        unsafe { Numbers::tile::<R, V>(words, left, right, to) };
    }
}

impl Multiply for Pairs {
    const GROUP: Group = Group::PAIR;

    #[inline(always)]
    unsafe fn add(sums: __m512, left: __m512i, right: __m512i) -> __m512 {
        // SAFETY: guaranteed by the caller; both types are 512 bits wide, and all bit patterns are valid.
        unsafe {
            let [left, right] = [left, right].map(|bits| transmute::<__m512i, __m512bh>(bits));
            _mm512_dpbf16_ps(sums, left, right)
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn tile<const R: usize, const V: usize>(words: usize, left: Left, right: *const u32, to: Target) {
        // SAFETY: guaranteed by the caller.
        unsafe { tile::<Self, R, V>(words, left, right, to) };
    }
}

/// Multiplies `R` rows with `V` vectors of columns of a panel, over `words` words.
///
/// # Safety
/// The processor has the instruction; rows and the panel have this many words; the target's elements exist, and
/// nothing else refers to them.
#[inline(always)]
unsafe fn tile<M: Multiply, const R: usize, const V: usize>(words: usize, left: Left, right: *const u32, to: Target) {
    // SAFETY: guaranteed by the caller; prefetching reads no memory.
    unsafe {
        for row in 0..R {
            let at = to.at.wrapping_offset(row as isize * to.row);
            (0..V).for_each(|vector| _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(vector * LANES).cast()));
        }
        // Constant strides give a tighter loop.
        let sums = match left {
            Left::Packed(at) => sums::<M, R, V>(words, at, (1, ROWS), right),
            Left::Rows(at, row) => sums::<M, R, V>(words, at, (row, 1), right),
        };
        match to.columns == V * LANES {
            true => write(&sums, to, [u16::MAX; V]),
            false => write(&sums, to, std::array::from_fn(|vector| first(to.columns.saturating_sub(vector * LANES)))),
        }
    }
}

/// Sums the products of rows with a panel; `row` and `word` are the strides of the rows' words.
///
/// # Safety
/// As for [`tile`].
#[inline(always)]
unsafe fn sums<M: Multiply, const R: usize, const V: usize>(
    words: usize,
    mut at: *const u32,
    (row, word): (isize, usize),
    mut panel: *const u32,
) -> [[__m512; V]; R] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); V]; R];
        let mut left = words;
        // Several words share the addresses of rows and the jump: threads that share a core also share the number of
        // instructions per cycle.
        while left >= UNROLLED {
            add::<M, R, V, UNROLLED>(&mut sums, at, (row, word), panel);
            (at, panel) = (at.wrapping_add(UNROLLED * word), panel.add(UNROLLED * COLUMNS));
            left -= UNROLLED;
        }
        for _ in 0..left {
            add::<M, R, V, 1>(&mut sums, at, (row, word), panel);
            (at, panel) = (at.wrapping_add(word), panel.add(COLUMNS));
        }
        sums
    }
}

/// Adds the products of `N` words to sums.
///
/// # Safety
/// As for [`tile`].
#[inline(always)]
unsafe fn add<M: Multiply, const R: usize, const V: usize, const N: usize>(
    sums: &mut [[__m512; V]; R],
    at: *const u32,
    (row, word): (isize, usize),
    panel: *const u32,
) {
    for step in 0..N {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let columns: [__m512i; V] =
                std::array::from_fn(|vector| _mm512_loadu_si512(panel.add(step * COLUMNS + vector * LANES).cast()));
            for (place, sums) in sums.iter_mut().enumerate() {
                let at = at.wrapping_offset(place as isize * row).wrapping_add(step * word);
                let word = _mm512_set1_epi32(at.cast::<i32>().read());
                for (sum, &column) in sums.iter_mut().zip(&columns) {
                    *sum = M::add(*sum, word, column);
                }
            }
        }
    }
}

/// Writes sums, for each vector under its mask.
///
/// # Safety
/// As for [`tile`].
#[inline(always)]
unsafe fn write<const R: usize, const V: usize>(sums: &[[__m512; V]; R], to: Target, masks: [u16; V]) {
    for (row, sums) in sums.iter().enumerate() {
        for (vector, (&sum, mask)) in sums.iter().zip(masks).enumerate() {
            let at = to.at.wrapping_offset(row as isize * to.row).wrapping_add(vector * LANES);
            // SAFETY: guaranteed by the caller.
            unsafe {
                let sum = if to.add { _mm512_add_ps(_mm512_maskz_loadu_ps(mask, at), sum) } else { sum };
                _mm512_mask_storeu_ps(at, mask, sum);
            }
        }
    }
}
