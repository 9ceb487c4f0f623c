//! Rounds numbers to `bf16` as matmuls do.

use super::Bf16;
use super::words::LANES;
use std::arch::x86_64::{__m256bh, __m256i, _mm256_storeu_si256, _mm512_cvtneps_pbh, _mm512_loadu_ps};
use std::mem::{MaybeUninit, transmute};

/// Rounds numbers to `bf16` as matmuls do.
///
/// # Panics
/// Panics if `from` and `to` differ in length.
pub(crate) fn round(_: Bf16, from: &[f32], to: &mut [MaybeUninit<u16>]) {
    assert_eq!(from.len(), to.len(), "each number has a place");
    // SAFETY: the argument proves AVX512-BF16.
    unsafe { rounded(from, to) };
}

#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn rounded(from: &[f32], to: &mut [MaybeUninit<u16>]) {
    let one = |from: *const f32, to: *mut u16| {
        // SAFETY: there are 16 numbers, and room for them.
        unsafe {
            let made = _mm512_cvtneps_pbh(_mm512_loadu_ps(from));
            _mm256_storeu_si256(to.cast(), transmute::<__m256bh, __m256i>(made));
        }
    };
    let (whole, last) = from.as_chunks::<LANES>();
    let (to, to_last) = to.as_chunks_mut::<LANES>();
    whole.iter().zip(to).for_each(|(from, to)| one(from.as_ptr(), to.as_mut_ptr().cast()));
    let (mut numbers, mut made) = ([0.0; LANES], [0; LANES]);
    numbers[..last.len()].copy_from_slice(last);
    one(numbers.as_ptr(), made.as_mut_ptr());
    to_last.iter_mut().zip(made).for_each(|(to, made)| _ = to.write(made));
}
