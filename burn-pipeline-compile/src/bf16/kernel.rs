//! A tile of a product, in registers.

use super::pack::{LANES, Line};
use std::arch::x86_64::{
    __m512, __m512bh, __m512i, __mmask16, _mm512_add_ps, _mm512_dpbf16_ps, _mm512_load_si512, _mm512_mask_storeu_ps,
    _mm512_maskz_loadu_ps, _mm512_set1_epi32, _mm512_setzero_ps,
};

/// Rows of a tile: half a panel.
pub(super) const ROWS: usize = 8;
/// Panels of columns of a tile.
pub(super) const PANELS: usize = 2;

/// Where a tile is written: rows whose elements follow each other.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub(super) at: *mut f32,
    pub(super) row: isize,
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Is the product added to what is there?
    pub(super) add: bool,
}

/// Multiplies half a panel of rows, from lane `lane` on, with one or two panels of columns, of so many pairs.
///
/// # Safety
/// The processor has AVX512-BF16. Panels are this deep, the second one if the target has more columns than one has; the target's
/// elements are there, and nothing else refers to them.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn tile(
    pairs: usize,
    (rows, lane): (*const Line, usize),
    columns: [*const Line; PANELS],
    to: Target,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match to.columns > LANES {
            true => write(sums::<PANELS>(pairs, rows.cast::<i32>().add(lane), columns), to),
            false => write(sums::<1>(pairs, rows.cast::<i32>().add(lane), [columns[0]]), to),
        }
    }
}

/// # Safety
/// As for [`tile`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn sums<const N: usize>(pairs: usize, rows: *const i32, columns: [*const Line; N]) -> [[__m512; N]; ROWS] {
    let mut sums = [[_mm512_setzero_ps(); N]; ROWS];
    for pair in 0..pairs {
        // SAFETY: panels are this deep.
        let right = columns.map(|panel| pairs_of(unsafe { _mm512_load_si512(panel.add(pair).cast::<__m512i>()) }));
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: as above; a half has this many lanes.
            let left = pairs_of(_mm512_set1_epi32(unsafe { *rows.add(pair * LANES + row) }));
            for (sum, &right) in sums.iter_mut().zip(&right) {
                *sum = _mm512_dpbf16_ps(*sum, left, right);
            }
        }
    }
    sums
}

/// The same bits as pairs.
fn pairs_of(bits: __m512i) -> __m512bh {
    // SAFETY: both are 512 bits, of which all values are valid.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(bits) }
}

/// # Safety
/// As for [`tile`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn write<const N: usize>(sums: [[__m512; N]; ROWS], to: Target) {
    for (row, sums) in sums.iter().enumerate() {
        if row >= to.rows {
            break;
        }
        for (panel, &sum) in sums.iter().enumerate() {
            let here: __mmask16 = match to.columns.saturating_sub(panel * LANES) {
                left if left < LANES => (1 << left) - 1,
                _ => __mmask16::MAX,
            };
            // SAFETY: the row is the target's, and the mask leaves columns out that are not.
            unsafe {
                let at = to.at.offset(row as isize * to.row).wrapping_add(panel * LANES);
                let sum = if to.add { _mm512_add_ps(_mm512_maskz_loadu_ps(here, at), sum) } else { sum };
                _mm512_mask_storeu_ps(at, here, sum);
            }
        }
    }
}
