//! A model of matrix tiles (AMX) by fused multiply-add, for tests on processors with AVX512-BF16 and without tiles.
//!
//! Its steps are those of TDPBF16PS in Intel's Software Developer's Manual. Tests compare it with the instruction where
//! the processor has it.

use super::amx::TileUnit;
use super::amx_kernels::{BLOCK, LeftTiles, TILE};
use std::arch::x86_64::{
    __m512, _CMP_LT_OQ, _CMP_NEQ_UQ, _mm512_abs_ps, _mm512_and_si512, _mm512_castsi512_ps, _mm512_cmp_ps_mask,
    _mm512_fmadd_ps, _mm512_loadu_si512, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_slli_epi32,
};

/// A model of the processor's tiles.
pub(super) struct Model;

/// Subnormal numbers as 0.
fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0.0_f32.copysign(x) } else { x }
}

/// A product added to a sum with one rounding to 24 bits, whatever the exponent. What is below 2⁻¹²⁶ then becomes 0.
fn product_added(a: f32, b: f32, sum: f32) -> f32 {
    let [a, b, sum] = [a, b, sum].map(flushed);
    let near = a.mul_add(b, sum);
    if near == 0.0 || near.abs() >= 2.0 * f32::MIN_POSITIVE || !near.is_finite() {
        return near;
    }
    // Subnormal numbers have fewer bits, so everything is scaled. No product is large here: it would have to cancel
    // with a sum, of which a larger bit would be left.
    let half = 2.0_f32.powi(50);
    let scaled = (a * half).mul_add(b * half, sum * half * half);
    if scaled.abs() < f32::MIN_POSITIVE * half * half { 0.0_f32.copysign(near) } else { scaled / half / half }
}

/// The model of one instruction: adds the products of 32 elements of a row and of all columns to the columns' sums.
///
/// # Safety
/// The elements exist, and the processor has AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn add_products(sums: &mut [f32; BLOCK], left: *const u16, right: *const u32) {
    let (zero, least) = (_mm512_setzero_ps(), _mm512_set1_ps(2.0 * f32::MIN_POSITIVE));
    let is_small =
        |x| _mm512_cmp_ps_mask::<_CMP_LT_OQ>(_mm512_abs_ps(x), least) & _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(x, zero);
    for (sums, half) in sums.as_chunks_mut::<TILE>().0.iter_mut().zip([0, TILE]) {
        let mut chains = [zero; 2];
        for (pair, odd) in (0..TILE).flat_map(|pair| [(pair, 0), (pair, 1)]) {
            // SAFETY: guaranteed by the caller.
            let (left, right) = unsafe {
                let left = f32::from_bits(u32::from(left.add(2 * pair + odd).read_unaligned()) << 16);
                (left, _mm512_loadu_si512(right.add(pair * BLOCK + half).cast()))
            };
            let upper = if odd == 0 { _mm512_slli_epi32::<16>(right) } else { right };
            let right = _mm512_castsi512_ps(_mm512_and_si512(upper, _mm512_set1_epi32(!0xffff)));
            let near = _mm512_fmadd_ps(_mm512_set1_ps(left), right, chains[odd]);
            chains[odd] = if left.is_subnormal() || is_small(right) | is_small(near) != 0 {
                let [right, before] = [right, chains[odd]].map(numbers);
                vector(std::array::from_fn(|column| product_added(left, right[column], before[column])))
            } else {
                near
            };
        }
        let [even, odd] = chains.map(numbers);
        (0..TILE).for_each(|column| sums[column] = flushed(sums[column] + flushed(even[column] + odd[column])));
    }
}

fn numbers(vector: __m512) -> [f32; TILE] {
    // SAFETY: both are 512 bits wide, and all bit patterns are valid.
    unsafe { std::mem::transmute(vector) }
}

fn vector(numbers: [f32; TILE]) -> __m512 {
    // SAFETY: as above.
    unsafe { std::mem::transmute(numbers) }
}

impl TileUnit for Model {
    unsafe fn configure() {}

    unsafe fn release() {}

    unsafe fn multiply(
        steps: usize,
        left: LeftTiles,
        right: *const u32,
        to: *mut f32,
        row: isize,
        [rows, columns]: [usize; 2],
    ) {
        for place in 0..rows as isize {
            let mut sums = [0.0; BLOCK];
            for step in 0..steps {
                let left = left.at.wrapping_offset(place * left.row + step as isize * left.step);
                // SAFETY: guaranteed by the caller; processors with AVX-512 have these features.
                unsafe { add_products(&mut sums, left.cast(), right.wrapping_add(step * TILE * BLOCK)) };
            }
            // SAFETY: guaranteed by the caller.
            unsafe { std::slice::from_raw_parts_mut(to.offset(place * row), columns) }
                .copy_from_slice(&sums[..columns]);
        }
    }

    unsafe fn multiply_parts<const PARTS: usize>(
        steps: usize,
        left: (*const u8, usize),
        right: (*const u32, usize),
        to: *mut f32,
    ) {
        let order: &[(usize, usize)] = match PARTS {
            2 => &[(1, 0), (0, 0), (0, 1)],
            _ => &[(2, 0), (1, 0), (1, 1), (0, 1), (0, 2), (0, 0)],
        };
        for row in 0..BLOCK {
            let mut sums = [0.0; BLOCK];
            for (step, &(left_part, right_part)) in
                (0..steps).flat_map(|step| order.iter().map(move |parts| (step, parts)))
            {
                let left = left.0.wrapping_add((step * BLOCK + row) * 64 + left_part * left.1);
                let right = right.0.wrapping_add(step * TILE * BLOCK).wrapping_byte_add(right_part * right.1);
                // SAFETY: as above.
                unsafe { add_products(&mut sums, left.cast(), right) };
            }
            // SAFETY: guaranteed by the caller.
            unsafe { to.add(row * BLOCK).cast::<[f32; BLOCK]>().write(sums) };
        }
    }
}
