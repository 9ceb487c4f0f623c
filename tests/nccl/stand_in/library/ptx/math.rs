//! The functions of libdevice, computed by the host in `f64`. Those of `f32` are rounded once.

use super::code::Math;

unsafe extern "C" {
    fn erf(value: f64) -> f64;
    fn exp10(value: f64) -> f64;
}

pub fn of(math: Math, a: f64, b: f64) -> f64 {
    match math {
        Math::Sin => a.sin(),
        Math::Cos => a.cos(),
        Math::Tan => a.tan(),
        Math::Asin => a.asin(),
        Math::Acos => a.acos(),
        Math::Atan => a.atan(),
        Math::Sinh => a.sinh(),
        Math::Cosh => a.cosh(),
        Math::Tanh => a.tanh(),
        Math::Exp => a.exp(),
        Math::Exp2 => a.exp2(),
        // SAFETY: a function of the C library for any value.
        Math::Exp10 => unsafe { exp10(a) },
        Math::Log => a.ln(),
        Math::Log2 => a.log2(),
        Math::Log10 => a.log10(),
        Math::Cbrt => a.cbrt(),
        // SAFETY: as above.
        Math::Erf => unsafe { erf(a) },
        Math::Atan2 => a.atan2(b),
        Math::Pow => a.powf(b),
    }
}
