//! The formats of half precision: to `f64`, which holds every value of them, and back with one rounding.

/// The bits of an exponent and of a mantissa.
#[derive(Clone, Copy)]
pub struct Format {
    exponent: u32,
    mantissa: u32,
    /// The NaN of a result.
    nan: u16,
}

pub const F16: Format = Format { exponent: 5, mantissa: 10, nan: 0x7FFF };
pub const BF16: Format = Format { exponent: 8, mantissa: 7, nan: 0x7FFF };

impl Format {
    fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    /// The value of some bits.
    pub fn widen(self, bits: u16) -> f64 {
        let top = (1_u32 << self.exponent) - 1;
        let (exponent, mantissa) =
            (u32::from(bits) >> self.mantissa & top, u32::from(bits) & ((1 << self.mantissa) - 1));
        let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
        let scale = |power: i32| 2_f64.powi(power - self.bias() - self.mantissa as i32);
        sign * match exponent {
            0 => f64::from(mantissa) * scale(1),
            exponent if exponent == top => {
                if mantissa == 0 {
                    f64::INFINITY
                } else {
                    f64::NAN
                }
            }
            exponent => f64::from(mantissa | 1 << self.mantissa) * scale(exponent as i32),
        }
    }

    /// The nearest value, ties to even.
    pub fn narrow(self, value: f64) -> u16 {
        if value.is_nan() {
            return self.nan;
        }
        let sign = u16::from(value.is_sign_negative()) << 15;
        let infinity = ((1_u16 << self.exponent) - 1) << self.mantissa;
        let (bits, least) = (value.abs().to_bits(), 1 - self.bias());
        let power = ((bits >> 52) as i32 - 1023).max(least);
        // In units of the last place, which makes subnormal results right as well.
        let units = value.abs() * 2_f64.powi(self.mantissa as i32 - power);
        if units.is_infinite() {
            return sign | infinity;
        }
        let rounded = units.round_ties_even() as u32;
        // A mantissa that grows by a bit carries into the exponent.
        let base = ((power - least) as u32) << self.mantissa;
        sign | (base + rounded).min(u32::from(infinity)) as u16
    }
}

/// `a * b + c` for a product that is exact: rounded to odd, so that a second rounding is right.
pub fn multiply_add(a: f64, b: f64, c: f64) -> f64 {
    let product = a * b;
    let sum = product + c;
    let part = sum - product;
    let lost = (product - (sum - part)) + (c - part);
    if lost == 0.0 || !lost.is_finite() || !sum.is_finite() || sum.to_bits() & 1 == 1 {
        return sum;
    }
    if (lost > 0.0) == (sum > 0.0) { f64::from_bits(sum.to_bits() + 1) } else { f64::from_bits(sum.to_bits() - 1) }
}
