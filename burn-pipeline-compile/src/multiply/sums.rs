//! A block of sums, and how it is written to its place: where the target is half precision, is strided, is added to,
//! or has fewer rows or columns than a block.

use super::amx_kernels::BLOCK;
use super::words::{LANES, first};
use super::{Matrix, To};
use crate::half::Half;
use std::arch::x86_64::{_mm512_add_ps, _mm512_load_ps, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps};

/// Sums of at most 32 rows and columns.
#[repr(align(64))]
pub(super) struct Sums(pub(super) [[f32; BLOCK]; BLOCK]);

impl Sums {
    pub(super) fn zeros() -> Self {
        Self([[0.0; BLOCK]; BLOCK])
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut f32 {
        self.0.as_flattened_mut().as_mut_ptr()
    }

    /// Writes the sums of some rows and columns, or adds them. Half precision is rounded, and is not added to.
    ///
    /// # Safety
    /// The target has these rows and columns, and nothing else refers to it; the processor has AVX-512.
    pub(super) unsafe fn write(&self, sizes: [usize; 2], to: Matrix<To>, add: bool) {
        let Matrix { row, column, .. } = to;
        // SAFETY: guaranteed by the caller.
        unsafe {
            match to.at {
                To::F32(at) if column == 1 => self.rows(sizes, Matrix { at, row, column }, add),
                To::F32(at) => {
                    self.elements(sizes, Matrix { at, row, column }, |to, sum| if add { to + sum } else { sum })
                }
                To::Half(at, Half::Bf16) if column == 1 => self.narrow(sizes, at, row),
                To::Half(at, half) => {
                    self.elements(sizes, Matrix { at, row, column }, |_, sum| half.bits(half.rounded(sum)));
                }
            }
        }
    }

    /// Writes rows with contiguous elements, or adds to them.
    ///
    /// # Safety
    /// As for [`write`](Self::write).
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn rows(&self, [rows, columns]: [usize; 2], to: Matrix<*mut f32>, add: bool) {
        for (place, sums) in self.0[..rows].iter().enumerate() {
            let at = to.at.wrapping_offset(place as isize * to.row);
            for start in (0..columns).step_by(LANES) {
                let (at, mask) = (at.wrapping_add(start), first(columns - start));
                // SAFETY: guaranteed by the caller; a row of sums is aligned.
                unsafe {
                    let sums = _mm512_load_ps(sums[start..].as_ptr());
                    let sums = if add { _mm512_add_ps(_mm512_maskz_loadu_ps(mask, at), sums) } else { sums };
                    _mm512_mask_storeu_ps(at, mask, sums);
                }
            }
        }
    }

    /// Rounds rows with contiguous elements to `bf16`.
    ///
    /// # Safety
    /// As for [`write`](Self::write).
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn narrow(&self, [rows, columns]: [usize; 2], at: *mut u16, row: isize) {
        for (place, sums) in self.0[..rows].iter().enumerate() {
            // A loop over a constant number of elements, and no closure: both are needed to vectorise it.
            let mut bits = [0_u16; BLOCK];
            for (bits, &sum) in bits.iter_mut().zip(sums) {
                *bits = Half::Bf16.bits(Half::Bf16.rounded(sum));
            }
            let at = at.wrapping_offset(place as isize * row);
            // SAFETY: guaranteed by the caller.
            unsafe {
                match columns {
                    BLOCK => at.cast::<[u16; BLOCK]>().write_unaligned(bits),
                    _ => std::ptr::copy_nonoverlapping(bits.as_ptr(), at, columns),
                }
            }
        }
    }

    /// Writes elements one by one.
    ///
    /// # Safety
    /// As for [`write`](Self::write).
    unsafe fn elements<T: Copy>(&self, [rows, columns]: [usize; 2], to: Matrix<*mut T>, value: impl Fn(T, f32) -> T) {
        for (row, sums) in self.0[..rows].iter().enumerate() {
            for (column, &sum) in sums[..columns].iter().enumerate() {
                let at = to.at.wrapping_offset(row as isize * to.row + column as isize * to.column);
                // SAFETY: guaranteed by the caller.
                unsafe { *at = value(*at, sum) };
            }
        }
    }
}
