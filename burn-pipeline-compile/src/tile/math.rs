//! Functions of one `f32` without branches, so that loops over them are vectorised.
//!
//! Largest errors against the exact value, in units in the last place, over all arguments (measured by tests):
//!
//! | function | error at most |
//! |---|---|
//! | `exp` | 2 |
//! | `log` | 2 |
//! | `erf` | 2 |
//! | `tanh` | 3 |
//! | sums, products, quotients, square roots | 0.5 |
//!
//! `FMA` is true if the processor has fused multiply-add; without it, the errors above are 1 larger. The normal
//! distribution, for `gelu` and its gradient, is within 1.2e-7 of the exact value with and without it.
//!
//! The polynomial of the normal distribution was fitted by Lawson's algorithm (weighted least squares, repeated). The
//! others are minimax approximations after N. Juffa (forums.developer.nvidia.com,
//! stackoverflow.com/a/35148199, 39819319). The reduction of `exp`'s argument by ln 2 in two parts is Cody and
//! Waite's.

use crate::graph::Map;

#[inline(always)]
fn fma<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// Evaluates a polynomial in `x` with these coefficients, the highest power's first.
#[inline(always)]
fn polynomial<const FMA: bool, const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut sum = coefficients[0];
    for coefficient in &coefficients[1..] {
        sum = fma::<FMA>(sum, x, *coefficient);
    }
    sum
}

/// `exp` of a number between -104 and 89, as a factor near 1 and a power of two.
#[inline(always)]
fn exp_parts<const FMA: bool>(x: f32) -> (f32, i32) {
    // Adding 1.5 * 2^23 rounds to a whole number, which is then in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    let shifted = fma::<FMA>(x, std::f32::consts::LOG2_E, ROUND);
    let whole = shifted - ROUND;
    let rest = fma::<FMA>(whole, -0.693_145_75, x);
    let rest = fma::<FMA>(whole, -1.428_606_8e-6, rest);
    let coefficients = [1.378_059_4e-3, 8.373_124_5e-3, 4.166_953_6e-2, 0.166_664_72, 0.499_999_85, 1.0, 1.0];
    let exponent = shifted.to_bits().cast_signed().wrapping_sub(ROUND.to_bits().cast_signed());
    (polynomial::<FMA, 7>(rest, coefficients), exponent)
}

#[inline(always)]
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits((exponent.wrapping_add(127) << 23).cast_unsigned())
}

#[inline(always)]
pub(super) fn exp<const FMA: bool>(x: f32) -> f32 {
    // Beyond these bounds the result is 0 or infinite. NaN passes both comparisons. Results of 0 (masked scores) must
    // not be computed: subnormal numbers take some processors a hundred times as long.
    let vanishes = x < -104.0;
    let x = if vanishes { 0.0 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    let (factor, exponent) = exp_parts::<FMA>(x);
    // The power in two factors, so that subnormal results are right.
    let half = exponent >> 1;
    let result = factor * power_of_two(half) * power_of_two(exponent - half);
    if vanishes { 0.0 } else { result }
}

/// The normal distribution (the integral of its density up to `x`), and its density at `x` relative to that at 0.
///
/// The integral beyond |x| is the density times Mills' ratio, which a polynomial approximates. So one exponential
/// serves both results. Beyond 6 the ratio at 6 is taken: the integral is below 1e-9 there.
#[inline(always)]
fn normal<const FMA: bool>(x: f32) -> (f32, f32) {
    let below = -0.5 * x * x;
    // Far out the density is 0: subnormal numbers would be slow. NaN passes all comparisons.
    let vanishes = below < -80.0;
    let (factor, exponent) = exp_parts::<FMA>(if vanishes { 0.0 } else { below });
    let density = if vanishes { 0.0 } else { factor * power_of_two(exponent) };
    let size = x.abs();
    let size = if size > 6.0 { 6.0 } else { size };
    let coefficients = [
        4.494_602e-3,
        6.729_818e-5,
        -4.690_937_7e-3,
        -8.683_598e-3,
        1.036_668e-2,
        -7.223_722e-3,
        1.804_404_1e-2,
        -2.944_081_5e-2,
        4.322_768_4e-2,
        -6.428_736e-2,
        9.176_935e-2,
        -0.126_161_6,
    ];
    let slope = polynomial::<FMA, 12>(fma::<FMA>(size, 1.0 / 3.0, -1.0), coefficients);
    let beyond = density * fma::<FMA>(slope, size, 0.5);
    (if x < 0.0 { beyond } else { 1.0 - beyond }, density)
}

#[inline(always)]
pub(super) fn log<const FMA: bool>(x: f32) -> f32 {
    let small = x < f32::MIN_POSITIVE;
    let scaled = if small { x * 8_388_608.0 } else { x };
    let bits = scaled.to_bits().cast_signed();
    // The exponent that leaves a factor between 2/3 and 4/3.
    let exponent = bits.wrapping_sub(0x3f2a_aaab) & 0xff80_0000_u32.cast_signed();
    let factor = f32::from_bits(bits.wrapping_sub(exponent).cast_unsigned()) - 1.0;
    let power = (exponent as f32) * (1.0 / 8_388_608.0) + if small { -23.0 } else { 0.0 };
    let square = factor * factor;
    let odd = polynomial::<FMA, 4>(square, [-0.130_310_06, -0.121_483_51, -0.166_846_13, -0.249_996_2]);
    let even = polynomial::<FMA, 3>(square, [0.140_869_14, 0.139_814_85, 0.200_120_35]);
    let sum = fma::<FMA>(even, factor, odd);
    let sum = fma::<FMA>(sum, factor, 0.333_331_97);
    let sum = fma::<FMA>(sum, factor, -0.5);
    let sum = fma::<FMA>(sum, square, factor);
    let result = fma::<FMA>(power, std::f32::consts::LN_2, sum);
    let result = if x < 0.0 { f32::NAN } else { result };
    let result = if x == 0.0 { f32::NEG_INFINITY } else { result };
    // Infinity and NaN are returned unchanged.
    if x < f32::INFINITY { result } else { x }
}

#[inline(always)]
pub(super) fn erf<const FMA: bool>(x: f32) -> f32 {
    let (size, square) = (x.abs(), x * x);
    let high = fma::<FMA>(-1.728_534_7e-5, size, 3.831_971_3e-4);
    let low = fma::<FMA>(-3.883_964_4e-3, size, 2.425_462_2e-2);
    let sum = fma::<FMA>(high, square, low);
    let sum = polynomial::<FMA, 4>(size, [sum, -0.106_777_88, -0.634_846_7, -0.128_717_51]);
    let sum = fma::<FMA>(sum, size, -size);
    let far = (1.0 - exp::<FMA>(sum)).copysign(x);
    let coefficients = [-5.967_617e-4, 4.991_194_2e-3, -2.676_813_5e-2, 0.112_819_925, -0.376_125_34, 0.128_379_17];
    let near = fma::<FMA>(polynomial::<FMA, 6>(square, coefficients), x, x);
    if size > 0.927_734_4 { far } else { near }
}

#[inline(always)]
pub(super) fn tanh<const FMA: bool>(x: f32) -> f32 {
    let (size, square) = (x.abs(), x * x);
    let far = (1.0 - 2.0 / (exp::<FMA>(2.0 * size) + 1.0)).copysign(x);
    let sum = polynomial::<FMA, 4>(square, [1.573_944e-2, -5.230_256e-2, 0.133_152_47, -0.333_327_68]);
    // The sign is that of `x`; a product of two small numbers would lose that of -0.
    let near = fma::<FMA>(sum * square, x, x).copysign(x);
    if size > 0.55 { far } else { near }
}

#[inline(always)]
pub(super) fn sigmoid<const FMA: bool>(x: f32) -> f32 {
    let small = exp::<FMA>(-x.abs());
    let above = if x >= 0.0 { 1.0 } else { small };
    // A NaN propagates through the sum.
    above / (1.0 + small)
}

#[inline(always)]
pub(super) fn gelu<const FMA: bool>(x: f32) -> f32 {
    x * normal::<FMA>(x).0
}

#[inline(always)]
pub(super) fn gelu_backward<const FMA: bool>(x: f32, gradient: f32) -> f32 {
    // 1 / sqrt(2 pi)
    const DENSITY: f32 = 0.398_942_3;
    let (below, density) = normal::<FMA>(x);
    gradient * fma::<FMA>(DENSITY * x, density, below)
}

#[inline(always)]
pub(super) fn sign(x: f32) -> f32 {
    // 0 for NaN, as in Flex.
    let above = if x > 0.0 { 1.0 } else { 0.0 };
    if x < 0.0 { -1.0 } else { above }
}

#[inline(always)]
pub(super) fn at_least(x: f32, bound: f32) -> f32 {
    // As in Flex: NaN stays, and a bound that is NaN counts.
    if x > bound || x.is_nan() { x } else { bound }
}

#[inline(always)]
pub(super) fn at_most(x: f32, bound: f32) -> f32 {
    if x < bound || x.is_nan() { x } else { bound }
}

#[inline(always)]
pub(super) fn truth(value: bool) -> f32 {
    if value { 1.0 } else { 0.0 }
}

/// Evaluates a function of one operand.
#[inline(always)]
pub(super) fn one<const FMA: bool>(map: Map, x: f32) -> f32 {
    match map {
        Map::Neg => -x,
        Map::Abs => x.abs(),
        Map::Sign => sign(x),
        Map::Recip => 1.0 / x,
        Map::Square => x * x,
        Map::Cube => x * x * x,
        Map::Sqrt => x.sqrt(),
        Map::Exp => exp::<FMA>(x),
        Map::Log => log::<FMA>(x),
        Map::Log1p => x.ln_1p(),
        Map::Sin => x.sin(),
        Map::Cos => x.cos(),
        Map::Tanh => tanh::<FMA>(x),
        Map::Erf => erf::<FMA>(x),
        Map::Floor => x.floor(),
        Map::Ceil => x.ceil(),
        Map::Relu => {
            if x <= 0.0 {
                0.0
            } else {
                x
            }
        }
        Map::Sigmoid => sigmoid::<FMA>(x),
        Map::Gelu => gelu::<FMA>(x),
        Map::Not => 1.0 - x,
        _ => x,
    }
}

/// Evaluates a function of two operands.
#[inline(always)]
pub(super) fn two<const FMA: bool>(map: Map, x: f32, y: f32) -> f32 {
    match map {
        Map::Add => x + y,
        Map::Sub => x - y,
        Map::Mul => x * y,
        Map::Div => x / y,
        Map::AtLeast => at_least(x, y),
        Map::AtMost => at_most(x, y),
        Map::Power => x.powf(y),
        Map::LeakyRelu => {
            if x >= 0.0 {
                x
            } else {
                y * x
            }
        }
        Map::ReluBackward => {
            if x <= 0.0 {
                0.0
            } else {
                y
            }
        }
        Map::SigmoidBackward => y * x * (1.0 - x),
        Map::GeluBackward => gelu_backward::<FMA>(x, y),
        Map::Equal => truth(x == y),
        Map::NotEqual => truth(x != y),
        Map::Greater => truth(x > y),
        Map::GreaterEqual => truth(x >= y),
        Map::Lower => truth(x < y),
        Map::LowerEqual => truth(x <= y),
        _ => x,
    }
}

/// Evaluates a function of constants.
pub(crate) fn evaluate(map: Map, values: &[f32]) -> f32 {
    match *values {
        [x] => one::<false>(map, x),
        [x, y] => two::<false>(map, x, y),
        [mask, x, y] => {
            if mask == 0.0 {
                y
            } else {
                x
            }
        }
        _ => f32::NAN,
    }
}
