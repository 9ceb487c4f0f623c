//! Products of matrices whose elements are rounded to `bf16`, summed in `f32`.
//!
//! Guarantees: what a product gives depends on its operands' values and sizes alone, not on how they lie, nor on the number of threads.
//! Elements are rounded to the nearest `bf16`, ties to even; products of two of them are exact in `f32`. Each element is a sum over
//! [`DEPTH`] of these at a time, from the first pair on, and sums of such blocks are added in order. Subnormal numbers (below 2⁻¹²⁶)
//! count as 0, as the processor's instruction has it. A product that is added to what is there gives the bits that it would give if it was
//! written and then added, up to that depth.
//!
//! 1. Both operands are rounded and packed, block by block: panels of 16 rows (of the left one) or columns (of the right one), in which
//!    two neighbours along the depth make a pair ([`pack`]). Blocks stay in the second cache.
//! 2. A tile of 8 rows and 32 columns stays in registers while the depth runs by ([`kernel`]), as in Goto and van de Geijn, Anatomy of
//!    High-Performance Matrix Multiplication (ACM TOMS 34, 2008).
//!
//! Only on processors with AVX512-BF16: [`Bf16`] says so, and nothing runs without one.

#[cfg(target_arch = "x86_64")]
mod kernel;
#[cfg(target_arch = "x86_64")]
mod pack;
#[cfg(target_arch = "x86_64")]
mod product;

#[cfg(not(target_arch = "x86_64"))]
pub(crate) use nowhere::{multiply, round};
#[cfg(target_arch = "x86_64")]
pub(crate) use product::{multiply, round};

/// That this processor multiplies pairs of `bf16` and sums in `f32` (AVX512-BF16).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bf16(Found);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg(target_arch = "x86_64")]
struct Found;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg(not(target_arch = "x86_64"))]
enum Found {}

impl Bf16 {
    /// `None` if the processor has no such instruction: in `f32` it is faster then.
    pub fn detect() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        {
            let found = is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512bw");
            found.then_some(Self(Found))
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
    use super::{Bf16, Elements, Matrix};
    use std::mem::MaybeUninit;

    pub(crate) unsafe fn multiply(
        bf16: Bf16,
        _: [usize; 3],
        _: Matrix<*mut f32>,
        _: Matrix<Elements>,
        _: Matrix<Elements>,
        _: bool,
        _: bool,
    ) {
        match bf16.0 {}
    }

    pub(crate) fn round(bf16: Bf16, _: &[f32], _: &mut [MaybeUninit<u16>]) {
        match bf16.0 {}
    }
}

#[cfg(test)]
mod tests;
