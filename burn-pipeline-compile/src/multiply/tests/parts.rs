//! Compares matmuls of parts with sums in `f64`, and with `f32`'s own error.

use super::{Lies, Sample, matmul, on_tiles, sample};
use crate::multiply::{Avx512, By, Parts};

/// Numbers of a normal distribution, times powers of two up to 2^`wide` and down to its inverse.
fn normal(count: usize, wide: f64, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut unit = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / 2.0_f64.powi(53)
    };
    let number = |_| {
        let (radius, angle) = ((-2.0 * (1.0 - unit()).ln()).sqrt(), std::f64::consts::TAU * unit());
        (radius * angle.cos() * 2.0_f64.powf((2.0 * unit() - 1.0) * wide)) as f32
    };
    (0..count).map(number).collect()
}

/// The root of the mean square of the errors, in units of 2⁻²⁴ of the sums of magnitudes.
fn error(by: By, [lhs, rhs]: [&Sample; 2]) -> f64 {
    let (rows, columns, depth) = (lhs.rows, rhs.columns, lhs.columns);
    let given = matmul(by, [lhs, rhs], &sample(rows, columns, (Lies::Rows, false, 0)), false, false);
    let off = |at: usize| {
        let (row, column) = (at / columns, at % columns);
        let term = |k: usize| f64::from(lhs.values[row * depth + k]) * f64::from(rhs.values[k * columns + column]);
        let (sum, size) = (0..depth).map(term).fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
        ((f64::from(given[at]) - sum) / size * 2.0_f64.powi(24)).powi(2)
    };
    ((0..rows * columns).map(off).sum::<f64>() / (rows * columns) as f64).sqrt()
}

#[test]
fn six_products_are_as_near_as_f32_and_three_two_hundred_times_nearer_than_one() {
    let Some(numbers) = Avx512::detect().map(By::Numbers) else { return };
    let cases = [(256, 0.0), (1024, 0.0), (256, 60.0), (1024, 60.0)];
    for (depth, wide) in cases {
        let operand = |rows, columns, seed| {
            let values = normal(rows * columns, wide, seed);
            Sample { rows, columns, values, lies: Lies::Rows, rounded: false }
        };
        let operands = [&operand(48, depth, 1), &operand(depth, 48, 2)];
        let f32 = error(numbers, operands);
        let of = |parts| on_tiles(parts).map(|by| error(by, operands));
        for (six, (three, one)) in of(Parts::Three).zip(of(Parts::Two).zip(of(Parts::One))) {
            assert!(six <= 1.3 * f32, "depth {depth}, 2^{wide}: {six} with six products, {f32} in f32");
            assert!(three <= one / 200.0, "depth {depth}, 2^{wide}: {three} with three products, {one} with one");
        }
    }
}

/// Half of the products cancel the other half but for a few bits.
#[test]
fn sums_that_cancel_are_as_near_as_f32() {
    let Some(numbers) = Avx512::detect().map(By::Numbers) else { return };
    let (half, size) = (128, 48);
    let left = normal(size * half, 0.0, 3);
    let right = normal(half * size, 0.0, 4);
    let rows =
        left.chunks(half).flat_map(|row| [row.to_vec(), row.iter().map(|x| -x * (1.0 + 1e-6)).collect()].concat());
    let lhs = Sample { rows: size, columns: 2 * half, values: rows.collect(), lies: Lies::Rows, rounded: false };
    let values = [right.clone(), right].concat();
    let rhs = Sample { rows: 2 * half, columns: size, values, lies: Lies::Rows, rounded: false };
    let f32 = error(numbers, [&lhs, &rhs]);
    for six in on_tiles(Parts::Three).map(|by| error(by, [&lhs, &rhs])) {
        assert!(six <= f32, "{six} with six products, {f32} in f32");
    }
}

/// What parts cannot represent: infinities, NaN and numbers that round to infinity. Subnormal numbers count as 0.
#[test]
fn sums_of_parts_that_are_not_finite_have_the_bits_of_f32() {
    let Some(numbers) = Avx512::detect().map(By::Numbers) else { return };
    let (rows, columns, depth) = (40, 35, 50);
    let (mut left, mut right) = (normal(rows * depth, 0.0, 5), normal(depth * columns, 0.0, 6));
    left[3 * depth + 7] = f32::INFINITY;
    left[4 * depth + 7] = f32::NAN;
    left[38 * depth + 7] = f32::MAX;
    left[39 * depth + 49] = f32::from_bits(1);
    right[7 * columns + 34] = 1e-5;
    right[8 * columns + 33] = f32::NEG_INFINITY;
    right[9 * columns + 32] = 3.4e38;
    let lhs = Sample { rows, columns: depth, values: left, lies: Lies::Apart, rounded: false };
    let rhs = Sample { rows: depth, columns, values: right, lies: Lies::Columns, rounded: false };
    let to = sample(rows, columns, (Lies::Rows, false, 0));
    let expected = matmul(numbers, [&lhs, &rhs], &to, false, false);
    assert!(expected[3 * columns].is_infinite() && expected[38 * columns + 34].is_finite(), "the case is covered");
    for by in on_tiles(Parts::Two).chain(on_tiles(Parts::Three)) {
        for (at, (given, expected)) in matmul(by, [&lhs, &rhs], &to, false, false).iter().zip(&expected).enumerate() {
            let again = [3, 4, 38].contains(&(at / columns)) || [32, 33].contains(&(at % columns));
            let same = given.to_bits() == expected.to_bits() || given.is_nan() && expected.is_nan();
            let near = !again && (given - expected).abs() < 1e-3;
            assert!(same || near, "{by:?}, row {}, column {}: {given}, not {expected}", at / columns, at % columns);
        }
    }
}
