//! How compiled stages multiply `f32`.

use burn_pipeline_compile::{Bf16, Parts};

/// How the matmuls and convolutions of compiled stages multiply `f32`. Sums are `f32` always. See
/// [`Builder::matmuls`](crate::Builder::matmuls).
///
/// Henry, Tang and Heinecke, Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations
/// (arXiv:1904.06376), measure splitting, which XLA and oneDNN name in the same way.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Matmuls {
    /// As it is.
    #[default]
    F32,
    /// Rounded to `bf16`: each operand is off by at most 2⁻⁸ of itself. A processor needs AVX-512, and is faster than
    /// in `f32` if it is Intel's with AMX, or AMD's with AVX512-BF16.
    Bf16,
    /// Split into two `bf16` numbers, of which three products are summed: each operand is off by at most 2⁻¹⁶ of
    /// itself. Needs AMX and Linux.
    Bf16x3,
    /// Split into three `bf16` numbers, of which six products are summed: as near as `f32`, but not the same bits.
    /// Elements below 2⁻¹¹⁰ lose bits, and below 2⁻¹²⁶ they count as 0. Needs AMX and Linux. Measure before you choose
    /// it: it is slower than `F32` on a core whose other hyperthread computes.
    Bf16x6,
}

impl Matmuls {
    /// The proof that this processor multiplies so; `None` for `F32`, too.
    pub(crate) fn detect(self) -> Option<Bf16> {
        match self {
            Self::F32 => None,
            Self::Bf16 => Bf16::detect(Parts::One),
            Self::Bf16x3 => Bf16::detect(Parts::Two),
            Self::Bf16x6 => Bf16::detect(Parts::Three),
        }
    }
}
