//! Products of matrices on processors with AVX-512: of `f32`, or of elements rounded to `bf16` and summed in `f32`.
//!
//! Guarantees: what a product gives depends on its operands' values and sizes alone, not on how they lie, nor on the number of threads.
//! Each element is a sum over [`DEPTH`](blocks::DEPTH) products at a time, from the first one on, each multiplied and added with one rounding, and
//! sums of such blocks are added in order. A product that is added to what is there gives the bits that it would give if it was
//! written and then added, up to that depth. Elements that are rounded are rounded to the nearest `bf16`, ties to even; products of two of
//! them are exact in `f32`, two neighbours along the depth make a pair, and subnormal numbers (below 2⁻¹²⁶) count as 0, as the processor's
//! instruction has it.
//!
//! 1. Operands are cut into [`blocks`] and packed, as words of 32 bits ([`words`]): panels of 12 rows (of the left one) and of 32 columns (of the
//!    right one), word after word along the depth ([`pack`]). A block of columns takes 1 MiB at most, one of rows half of that. Rows of `f32` that lie well are read where they are.
//! 2. A tile of 12 rows and 32 columns stays in registers while the depth runs by ([`tiles`], [`kernel`]), as in Goto and van de Geijn, Anatomy of
//!    High-Performance Matrix Multiplication (ACM TOMS 34, 2008).
//!
//! Nothing runs without a proof of what the processor has: [`Avx512`], [`Bf16`].

#[cfg(target_arch = "x86_64")]
mod blocks;
#[cfg(target_arch = "x86_64")]
mod kernel;
#[cfg(target_arch = "x86_64")]
mod pack;
#[cfg(target_arch = "x86_64")]
mod round;
#[cfg(target_arch = "x86_64")]
mod tiles;
#[cfg(target_arch = "x86_64")]
mod words;

#[cfg(target_arch = "x86_64")]
pub(crate) use blocks::multiply;
#[cfg(not(target_arch = "x86_64"))]
pub(crate) use nowhere::{multiply, round};
#[cfg(target_arch = "x86_64")]
pub(crate) use round::round;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg(target_arch = "x86_64")]
struct Found;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg(not(target_arch = "x86_64"))]
enum Found {}

/// That this processor multiplies vectors of 512 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Avx512(Found);

/// That this processor multiplies pairs of `bf16` and sums in `f32` (AVX512-BF16).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bf16(Found);

/// What is multiplied: numbers of `f32`, or pairs of `bf16`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum By {
    Numbers(Avx512),
    Pairs(Bf16),
}

impl Avx512 {
    pub(crate) fn detect() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        {
            let found = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl");
            found.then_some(Self(Found))
        }
        #[cfg(not(target_arch = "x86_64"))]
        None
    }
}

impl Bf16 {
    /// `None` if the processor has no such instruction: in `f32` it is faster then.
    pub fn detect() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        {
            Avx512::detect().filter(|_| is_x86_feature_detected!("avx512bf16")).map(|Avx512(found)| Self(found))
        }
        #[cfg(not(target_arch = "x86_64"))]
        None
    }
}

/// A matrix as it lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<P> {
    pub(crate) at: P,
    /// From one row to the next.
    pub(crate) row: isize,
    /// From one column to the next.
    pub(crate) column: isize,
}

/// The elements of an operand: `f32`, or rounded already.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Elements {
    F32(*const f32),
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "no product rounds there"))]
    Bf16(*const u16),
}

#[cfg(target_arch = "x86_64")]
impl<P> Matrix<P> {
    /// Rows as columns.
    fn turned(self) -> Self {
        Self { at: self.at, row: self.column, column: self.row }
    }
}

/// On processors that have no such instruction.
#[cfg(not(target_arch = "x86_64"))]
mod nowhere {
    use super::{Avx512, Bf16, By, Elements, Matrix};
    use std::mem::MaybeUninit;

    pub(crate) unsafe fn multiply(
        by: By,
        _: [usize; 3],
        _: Matrix<*mut f32>,
        _: Matrix<Elements>,
        _: Matrix<Elements>,
        _: bool,
        _: bool,
    ) {
        match by {
            By::Numbers(Avx512(found)) | By::Pairs(Bf16(found)) => match found {},
        }
    }

    pub(crate) fn round(bf16: Bf16, _: &[f32], _: &mut [MaybeUninit<u16>]) {
        match bf16.0 {}
    }
}

#[cfg(test)]
mod tests;
