//! Matmuls on processors with AVX-512: of `f32`, or of elements that are rounded to `bf16`, or split into `bf16` parts,
//! and summed in `f32`.
//!
//! Guarantees: the result of a matmul depends on the values and sizes of its operands alone, not on their strides or
//! the number of threads. Each element is a sum over blocks of [`DEPTH`] products, in order. Within a block, each product
//! is multiplied and added with one rounding, from the first to the last (of rounded elements: see below). A matmul added to a target gives the same bits as if it were written and then added, up to that depth.
//! Rounding is to the nearest `bf16`, ties to even. The bits of rounded matmuls depend on the kind of processor, too:
//!
//! - With matrix tiles (AMX), of each 32 elements along the depth those with even and those with odd places are summed
//!   apart, and subnormal numbers (below 2⁻¹²⁶) count as 0 ([`amx`]). Only tiles multiply parts ([`split`]).
//! - Without them, two neighbours along the depth make a pair, whose second product is added first, and subnormal
//!   elements count as 0, as in AVX512-BF16's instruction for pairs. All these processors give the same bits, unless a
//!   partial sum is subnormal: the instruction takes it as 0.
//!
//! 1. Operands are cut into [`blocks`] and packed, as words of 32 bits ([`words`]): panels of 12 rows (left operand)
//!    and of 32 columns (right operand), word after word along the depth ([`pack`]). A block of columns takes at most
//!    1 MiB (split into parts, 1.5 MiB), a block of rows half of that. Rows of `f32` with suitable strides are read in
//!    place.
//! 2. A tile of 12 rows and 32 columns stays in registers over the whole depth ([`tiles`], [`kernel`]), as in Goto
//!    and van de Geijn, Anatomy of High-Performance Matrix Multiplication (ACM TOMS 34, 2008); or 32 rows and columns
//!    stay in matrix tiles ([`matrix_tiles`], [`split`]).
//!
//! Nothing runs without a proof of the processor's features: [`Avx512`], [`Bf16`].
//!
//! The crates `gemm` and `gemmkit` and these kernels all run at the processor's peak once operands are packed; they
//! differ in packing. These kernels can read the left operand in place, are one set of loops for `f32` and `bf16`, and
//! give the same bits for any layout and number of threads, which `gemm` does not promise. `gemm`'s kernels run
//! elsewhere and for few rows or columns.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod amx_kernels;
#[cfg(target_arch = "x86_64")]
mod blocks;
#[cfg(target_arch = "x86_64")]
mod kernel;
#[cfg(target_arch = "x86_64")]
mod kernels;
#[cfg(target_arch = "x86_64")]
mod matrix_tiles;
#[cfg(target_arch = "x86_64")]
mod pack;
#[cfg(target_arch = "x86_64")]
mod pack_rows;
#[cfg(target_arch = "x86_64")]
mod split;
#[cfg(target_arch = "x86_64")]
mod sums;
#[cfg(target_arch = "x86_64")]
mod tiles;
#[cfg(target_arch = "x86_64")]
mod words;

use crate::half::Half;
#[cfg(target_arch = "x86_64")]
pub(crate) use blocks::multiply;
#[cfg(not(target_arch = "x86_64"))]
pub(crate) use nowhere::multiply;
#[cfg(target_arch = "x86_64")]
use std::sync::LazyLock;

/// The depth of a block, whose products are summed in registers.
pub(crate) const DEPTH: usize = 512;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg(target_arch = "x86_64")]
struct Found;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg(not(target_arch = "x86_64"))]
enum Found {}

/// Proof that this processor multiplies vectors of 512 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Avx512(Found);

/// Proof that this processor multiplies `f32` in `bf16`, rounded or split into parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bf16 {
    found: Avx512,
    way: Way,
}

/// The number of `bf16` parts, the sum of which is about a number of `f32`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parts {
    /// The number is rounded: a relative error of at most 2⁻⁸. A matmul takes one product of `bf16`.
    One,
    /// A relative error of at most 2⁻¹⁶. A matmul takes three products.
    Two,
    /// No error, unless the number is below 2⁻¹¹⁰. A matmul takes six products.
    Three,
}

/// How numbers rounded to `bf16` are multiplied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg(target_arch = "x86_64")]
enum Way {
    /// Two multiplications of `f32` for each pair.
    OneByOne,
    /// AVX512-BF16's instruction for pairs. Intel's processors take about twice as long for it as for two
    /// multiplications of `f32`.
    Pairs,
    /// Matrix tiles.
    Tiles(amx::Amx, Parts),
    /// A software model of matrix tiles, in tests.
    #[cfg(test)]
    ModelOfTiles(Parts),
}

/// The kind of multiplication: numbers of `f32`, or numbers rounded to `bf16`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum By {
    Numbers(Avx512),
    Rounded(Bf16),
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
    /// Returns `None` if the processor multiplies `f32` faster: without AVX-512 or, if numbers are split, without
    /// matrix tiles.
    pub fn detect(parts: Parts) -> Option<Self> {
        let rounded = Self::rounded()?;
        match parts {
            Parts::One => Some(rounded),
            _ => rounded.split(parts),
        }
    }

    /// The fastest way to multiply rounded numbers.
    fn rounded() -> Option<Self> {
        let found = Avx512::detect()?;
        #[cfg(target_arch = "x86_64")]
        {
            static WAY: LazyLock<Way> = LazyLock::new(|| {
                let pairs = is_x86_feature_detected!("avx512bf16");
                match amx::Amx::detect().filter(|_| pairs) {
                    Some(tiles) => Way::Tiles(tiles, Parts::One),
                    None if pairs && !is_intel() => Way::Pairs,
                    None => Way::OneByOne,
                }
            });
            Some(Self { found, way: *WAY })
        }
        #[cfg(not(target_arch = "x86_64"))]
        match found.0 {}
    }

    #[cfg(target_arch = "x86_64")]
    fn split(self, parts: Parts) -> Option<Self> {
        match self.way {
            Way::Tiles(tiles, _) => Some(Self { way: Way::Tiles(tiles, parts), ..self }),
            _ => None,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn split(self, _: Parts) -> Option<Self> {
        match self.found.0 {}
    }

    /// What it is called: `bf16`, `bf16x3` or `bf16x6`.
    pub fn name(self) -> &'static str {
        match self.parts() {
            Parts::One => "bf16",
            Parts::Two => "bf16x3",
            Parts::Three => "bf16x6",
        }
    }

    /// Returns true if operands are rounded, and false if they are split into parts.
    pub fn rounds(self) -> bool {
        self.parts() == Parts::One
    }

    fn parts(self) -> Parts {
        #[cfg(target_arch = "x86_64")]
        match self.way {
            Way::OneByOne | Way::Pairs => Parts::One,
            Way::Tiles(_, parts) => parts,
            #[cfg(test)]
            Way::ModelOfTiles(parts) => parts,
        }
        #[cfg(not(target_arch = "x86_64"))]
        match self.found.0 {}
    }

    /// Returns true if sums are those of matrix tiles, and false if they are those of pairs.
    pub fn is_on_tiles(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return !matches!(self.way, Way::OneByOne | Way::Pairs);
        #[cfg(not(target_arch = "x86_64"))]
        match self.found.0 {}
    }
}

/// Returns true if the processor is Intel's.
#[cfg(target_arch = "x86_64")]
fn is_intel() -> bool {
    let vendor = std::arch::x86_64::__cpuid(0);
    [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).as_flattened() == b"GenuineIntel"
}

#[cfg(not(target_arch = "x86_64"))]
type Way = Found;

/// A matrix in memory, with its strides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<P> {
    pub(crate) at: P,
    /// The distance from one row to the next.
    pub(crate) row: isize,
    /// The distance from one column to the next.
    pub(crate) column: isize,
}

/// The elements of an operand.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Elements {
    F32(*const f32),
    Half(*const u16, Half),
}

/// The elements of a target.
#[derive(Clone, Copy, Debug)]
pub(crate) enum To {
    F32(*mut f32),
    Half(*mut u16, Half),
}

// SAFETY: each matmul of a batch, and each block of a matmul, writes its own elements.
unsafe impl Send for To {}
// SAFETY: as above.
unsafe impl Sync for To {}

impl To {
    /// Elements at this storage; `f32` unless they are half precision.
    pub(crate) fn new(at: *mut u8, half: Option<Half>) -> Self {
        match half {
            None => Self::F32(at.cast()),
            Some(half) => Self::Half(at.cast(), half),
        }
    }

    /// The elements from an offset on.
    pub(crate) fn offset(self, by: isize) -> Self {
        match self {
            Self::F32(at) => Self::F32(at.wrapping_offset(by)),
            Self::Half(at, half) => Self::Half(at.wrapping_offset(by), half),
        }
    }

    /// Writes 0.
    ///
    /// # Safety
    /// There is an element, and nothing else refers to it.
    #[cfg(target_arch = "x86_64")]
    unsafe fn clear(self) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self {
                Self::F32(at) => *at = 0.0,
                Self::Half(at, _) => *at = 0,
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl<P> Matrix<P> {
    /// The transposed matrix.
    fn transposed(self) -> Self {
        Self { at: self.at, row: self.column, column: self.row }
    }
}

/// For processors that have no such instruction.
#[cfg(not(target_arch = "x86_64"))]
mod nowhere {
    use super::{Avx512, Bf16, By, Elements, Matrix, To};

    pub(crate) unsafe fn multiply(
        by: By,
        _: [usize; 3],
        _: Matrix<To>,
        _: Matrix<Elements>,
        _: Matrix<Elements>,
        _: bool,
        _: bool,
    ) {
        match by {
            By::Numbers(Avx512(found)) | By::Rounded(Bf16 { found: Avx512(found), .. }) => match found {},
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod model;
#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
