//! Numbers in half precision: `bf16` and `f16`.
//!
//! Guarantees: rounding is to the nearest number, ties to even, as in the crate `half`; beyond the largest number it
//! gives infinity. Widening is exact. NaN stays NaN.
//!
//! 1. Tiles and matmuls compute in `f32`. What a half-precision tensor holds is widened as it is read
//!    ([`Half::widen`]).
//! 2. A result in half precision is rounded at once, and stays an `f32` within a tile ([`Half::rounded`]). So each
//!    operation rounds as Flex rounds it.
//! 3. Rounded numbers are packed as they are stored ([`Half::narrow`]).
//!
//! All of it is integer arithmetic without branches, which is vectorised for every processor.

use crate::processor::vectorized;
use burn::backend::flex::FlexTensor;
use burn::backend::ir::TensorIr;
use burn::tensor::{DType, bf16, f16};
use std::mem::MaybeUninit;

/// A half-precision type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Half {
    Bf16,
    F16,
}

const SIGN: u32 = 0x8000_0000;
const INFINITY: u32 = 0x7f80_0000;
/// Set in a NaN, so that cutting off bits leaves one.
const QUIET: u32 = 0x0040_0000;
/// The smallest normal number of `f16`, 2⁻¹⁴.
const SMALL: u32 = 0x3880_0000;
/// The difference of the exponents of `f32` and `f16`.
const EXPONENTS: u32 = 112 << 23;

/// Runs a loop in one version for each type, each of which is vectorised.
macro_rules! each {
    ($half:expr, |$type:ident| $loop:expr) => {
        match $half {
            Half::Bf16 => {
                const $type: Half = Half::Bf16;
                $loop
            }
            Half::F16 => {
                const $type: Half = Half::F16;
                $loop
            }
        }
    };
}

impl Half {
    /// The type of a tensor, if it is half precision.
    pub(crate) fn of(tensor: &TensorIr) -> Option<Self> {
        Self::of_dtype(tensor.dtype)
    }

    pub(crate) fn of_dtype(dtype: DType) -> Option<Self> {
        match dtype {
            DType::BF16 => Some(Self::Bf16),
            DType::F16 => Some(Self::F16),
            _ => None,
        }
    }

    /// The nearest number of this type.
    #[inline(always)]
    pub(crate) fn rounded(self, x: f32) -> f32 {
        let bits = x.to_bits();
        let (sign, size) = (bits & SIGN, bits & !SIGN);
        let cut = match self {
            Self::Bf16 => 16,
            Self::F16 => 13,
        };
        let nan = size > INFINITY;
        let up = size + ((1 << (cut - 1)) - 1) + ((size >> cut) & 1);
        let whole = if nan { size | QUIET } else { up } & !((1 << cut) - 1);
        let near = match self {
            Self::Bf16 => whole,
            Self::F16 => {
                // From 65,520 on it is infinite. Adding 1/2 rounds to a multiple of 2⁻²⁴.
                let large = if whole >= 0x4780_0000 && !nan { INFINITY } else { whole };
                let few = ((f32::from_bits(size) + 0.5) - 0.5).to_bits();
                if size < SMALL { few } else { large }
            }
        };
        f32::from_bits(sign | near)
    }

    /// The bits of a number of this type.
    #[inline(always)]
    pub(crate) fn bits(self, x: f32) -> u16 {
        let bits = x.to_bits();
        if self == Self::Bf16 {
            return (bits >> 16) as u16;
        }
        let size = bits & !SIGN;
        let normal = size.wrapping_sub(EXPONENTS) >> 13;
        let large = if size >= INFINITY { 0x7c00 | (size >> 13) & 0x3ff } else { normal };
        let few = (f32::from_bits(size) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
        let half = if size < SMALL { few } else { large };
        (bits >> 16 & 0x8000 | half) as u16
    }

    /// The number with these bits.
    #[inline(always)]
    pub(crate) fn number(self, bits: u16) -> f32 {
        let bits = u32::from(bits);
        if self == Self::Bf16 {
            return f32::from_bits(bits << 16);
        }
        let (sign, half) = ((bits & 0x8000) << 16, bits & 0x7fff);
        let normal = (half << 13) + EXPONENTS;
        let large = if half >= 0x7c00 { normal + EXPONENTS } else { normal };
        let few = (f32::from_bits(0.5_f32.to_bits() + half) - 0.5).to_bits();
        f32::from_bits(sign | if half < 0x400 { few } else { large })
    }

    /// The bits of a tensor's elements.
    ///
    /// # Panics
    /// Panics if the tensor has another type.
    pub(crate) fn elements(self, tensor: &FlexTensor) -> &[u16] {
        let (at, length) = match self {
            Self::Bf16 => (tensor.storage::<bf16>().as_ptr().cast::<u16>(), tensor.storage::<bf16>().len()),
            Self::F16 => (tensor.storage::<f16>().as_ptr().cast::<u16>(), tensor.storage::<f16>().len()),
        };
        // SAFETY: both types are wrappers of `u16`.
        unsafe { std::slice::from_raw_parts(at, length) }
    }

    /// Widens numbers, as many as both sides have.
    pub(crate) fn widen(self, from: &[u16], to: &mut [f32]) {
        let half = self;
        vectorized!(|_FMA, half: Half, from: &[u16], to: &mut [f32]| each!(half, |HALF| {
            to.iter_mut().zip(from).for_each(|(to, bits)| *to = HALF.number(*bits));
        }));
    }

    /// Rounds numbers and stores their bits, as many as both sides have.
    pub(crate) fn narrow(self, from: &[f32], to: &mut [MaybeUninit<u16>]) {
        let half = self;
        vectorized!(|_FMA, half: Half, from: &[f32], to: &mut [MaybeUninit<u16>]| each!(half, |HALF| {
            to.iter_mut().zip(from).for_each(|(to, x)| _ = to.write(HALF.bits(HALF.rounded(*x))));
        }));
    }
}

/// Rounds numbers in place.
#[inline(always)]
pub(crate) fn round(half: Half, numbers: &mut [f32]) {
    each!(half, |HALF| numbers.iter_mut().for_each(|number| *number = HALF.rounded(*number)));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares a number with the crate `half`'s.
    fn check(x: f32) {
        let pairs = [(Half::Bf16, bf16::from_f32(x).to_f32()), (Half::F16, f16::from_f32(x).to_f32())];
        for (half, expected) in pairs {
            let (mut bits, mut again) = ([MaybeUninit::new(0)], [0.0]);
            half.narrow(&[x], &mut bits);
            // SAFETY: it was written.
            half.widen(&[unsafe { bits[0].assume_init() }], &mut again);
            for got in [half.rounded(x), again[0]] {
                let same = got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan();
                assert!(same, "{x:e} as {half:?} is {got:e}, not {expected:e}");
            }
        }
    }

    #[test]
    fn numbers_are_rounded_as_the_crate_half_rounds_them() {
        (0..=u32::MAX).step_by(997).for_each(|bits| check(f32::from_bits(bits)));
        // Around all numbers of 16 bits, and around the middles between them.
        for bits in 0..=u16::MAX {
            for number in [bf16::from_bits(bits).to_f32(), f16::from_bits(bits).to_f32()] {
                for step in [0, 1 << 12, 1 << 15] {
                    let near = number.to_bits().wrapping_add(step);
                    [near.wrapping_sub(1), near, near.wrapping_add(1)]
                        .into_iter()
                        .for_each(|bits| check(f32::from_bits(bits)));
                }
            }
        }
    }

    #[test]
    fn all_numbers_of_sixteen_bits_are_widened_exactly() {
        for bits in 0..=u16::MAX {
            let pairs = [(Half::Bf16, bf16::from_bits(bits).to_f32()), (Half::F16, f16::from_bits(bits).to_f32())];
            for (half, expected) in pairs {
                let got = half.number(bits);
                assert!(got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan(), "{bits:x}");
            }
        }
    }
}
