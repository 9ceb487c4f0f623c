//! Functions of one element: their errors, and what they give for NaN, infinities and zeros.

use crate::listed::{BINARY, Listed, UNARY, binary, unary};
use crate::run::{Run, both, compiled, tensor, values};
use burn::backend::ir::{NumericOperationIr, ScalarOpIr};
use burn_pipeline_compile::Tensors;

/// The function of these values, compiled.
fn computed(name: &str, x: &[f32]) -> Vec<f32> {
    let mut listed = Listed::default();
    let input = listed.feed(&[x.len()]);
    let out = listed.unary(unary(name), &input);
    let (program, mut run) = (compiled(&listed, &[out.clone()]), Run::new(&[(input, tensor(x.to_vec(), &[x.len()]))]));
    program.run(0..program.len(), &mut run).unwrap();
    values(run.read(&out))
}

/// The distance from the exact value, in units in the last place of it.
fn ulps(value: f32, exact: f64) -> f64 {
    let rounded = exact as f32;
    if value == rounded || (value.is_nan() && rounded.is_nan()) {
        return 0.0;
    }
    let unit =
        f64::from(rounded.abs().max(f32::MIN_POSITIVE).next_up()) - f64::from(rounded.abs().max(f32::MIN_POSITIVE));
    (f64::from(value) - exact).abs() / unit
}

/// Numbers of all sizes: each exponent with some fractions, both signs.
fn numbers() -> Vec<f32> {
    let positive = (0..=0x7f7f_ffff_u32).step_by(4_999).map(f32::from_bits);
    positive.flat_map(|value| [value, -value]).collect()
}

fn worst(name: &str, exact: fn(f64) -> f64) -> f64 {
    let x = numbers();
    let errors = computed(name, &x).into_iter().zip(&x).map(|(value, x)| (ulps(value, exact(f64::from(*x))), *x));
    let (error, at) = errors.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    println!("{name}: {error:.2} units in the last place at {at:e}");
    error
}

/// The error function in double precision: its series near 0, its continued fraction far away.
fn erf(x: f64) -> f64 {
    let size = x.abs();
    let value = if size < 2.5 {
        let (mut term, mut sum, mut n) = (size, size, 0.0);
        while term.abs() > sum.abs() * 1e-17 {
            n += 1.0;
            term *= -size * size / n;
            sum += term / (2.0 * n + 1.0);
            if n > 200.0 {
                break;
            }
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    } else if size > 6.5 {
        1.0
    } else {
        let fraction = (1..=200).rev().fold(size, |below, k| size + f64::from(k) / 2.0 / below);
        1.0 - (-size * size).exp() / (fraction * std::f64::consts::PI.sqrt())
    };
    value.copysign(x)
}

#[test]
fn errors_are_as_stated() {
    assert!(worst("exp", f64::exp) <= 2.0);
    assert!(worst("log", f64::ln) <= 2.0);
    assert!(worst("tanh", f64::tanh) <= 3.0);
    assert!(worst("erf", erf) <= 2.0);
    assert!(worst("sigmoid", |x| 1.0 / (1.0 + (-x).exp())) <= 3.0);
    assert!(worst("sqrt", f64::sqrt) <= 0.5);
    assert!(worst("recip", f64::recip) <= 0.5);
}

/// The normal distribution in double precision, and its density.
fn normal(x: f64) -> (f64, f64) {
    let density = (-0.5 * x * x).exp() * std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2 / 2.0;
    (0.5 * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)), density)
}

#[test]
fn gelu_and_its_gradient_are_near_the_exact_ones() {
    let x: Vec<f32> = numbers().into_iter().filter(|x| x.abs() < 1e30).collect();
    for (x, value) in x.iter().zip(computed("gelu", &x)) {
        let wide = f64::from(*x);
        let (exact, most) = (wide * normal(wide).0, 1.2e-7 * wide.abs() + f64::from(f32::from_bits(1)));
        assert!((f64::from(value) - exact).abs() <= most, "gelu of {x:e} is {value:e}, not {exact:e}");
    }
    let mut listed = Listed::default();
    let [input, gradient] = [0, 1].map(|_| listed.feed(&[x.len()]));
    let out = listed.binary(binary("gelu backward"), &input, &gradient);
    let fed = [(input, tensor(x.clone(), &[x.len()])), (gradient, tensor(vec![1.0; x.len()], &[x.len()]))];
    let (program, mut run) = (compiled(&listed, &[out.clone()]), Run::new(&fed));
    program.run(0..program.len(), &mut run).unwrap();
    for (x, value) in x.iter().zip(values(run.read(&out))) {
        let (below, density) = normal(f64::from(*x));
        let exact = below + f64::from(*x) * density;
        assert!((f64::from(value) - exact).abs() <= 2e-7, "the gradient at {x:e} is {value:e}, not {exact:e}");
    }
}

/// Values where functions have corners.
const SPECIAL: [f32; 19] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.5,
    -2.5,
    1e-40,
    -1e-40,
    1e30,
    -1e30,
    88.7,
    -103.9,
    104.5,
    -200.0,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
];

fn alike(name: &str, x: f32, mine: f32, theirs: f32) {
    let same = mine == theirs && (mine != 0.0 || mine.is_sign_negative() == theirs.is_sign_negative());
    let same = same || (mine.is_nan() && theirs.is_nan());
    let near = theirs != 0.0 && (mine - theirs).abs() <= 4e-6 * theirs.abs().max(1e-38);
    assert!(same || near, "{name} of {x:e} is {mine:e}, and {theirs:e} on Flex");
}

#[test]
fn functions_of_special_values_are_those_of_flex() {
    for (name, function) in UNARY {
        let mut listed = Listed::default();
        let input = listed.feed(&[SPECIAL.len()]);
        let out = listed.unary(function, &input);
        let (theirs, mine) = both(&listed, &[tensor(SPECIAL.to_vec(), &[SPECIAL.len()])], &[out]);
        for (x, (mine, theirs)) in SPECIAL.iter().zip(mine[0].iter().zip(&theirs[0])) {
            alike(name, *x, *mine, *theirs);
        }
    }
}

/// A function of a tensor and a number.
type Scalar = fn(ScalarOpIr) -> NumericOperationIr;

#[test]
fn functions_of_special_values_and_scalars_are_those_of_flex() {
    let functions: [(&str, Scalar); 6] = [
        ("add", NumericOperationIr::AddScalar),
        ("sub", NumericOperationIr::SubScalar),
        ("mul", NumericOperationIr::MulScalar),
        ("div", NumericOperationIr::DivScalar),
        ("clamp min", NumericOperationIr::ClampMin),
        ("clamp max", NumericOperationIr::ClampMax),
    ];
    let input = tensor(SPECIAL.to_vec(), &[SPECIAL.len()]);
    for bound in [0.0, -0.0, 1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        for (name, function) in functions {
            let mut listed = Listed::default();
            let x = listed.feed(&[SPECIAL.len()]);
            let out = listed.scalar(function, &x, bound);
            let (theirs, mine) = both(&listed, &[input.clone()], &[out]);
            for (x, (mine, theirs)) in SPECIAL.iter().zip(mine[0].iter().zip(&theirs[0])) {
                alike(&format!("{name} with {bound}"), *x, *mine, *theirs);
            }
        }
    }
    for exponent in [0.5, -0.5, 1.0, -1.0, 2.0, 3.0] {
        let mut listed = Listed::default();
        let x = listed.feed(&[SPECIAL.len()]);
        let out = listed.power(&x, exponent);
        let (theirs, mine) = both(&listed, &[input.clone()], &[out]);
        for (x, (mine, theirs)) in SPECIAL.iter().zip(mine[0].iter().zip(&theirs[0])) {
            alike(&format!("the power {exponent}"), *x, *mine, *theirs);
        }
    }
}

#[test]
fn functions_of_two_special_values_are_those_of_flex() {
    let count = SPECIAL.len();
    for (name, function) in BINARY {
        let mut listed = Listed::default();
        let (x, y) = (listed.feed(&[count, 1]), listed.feed(&[1, count]));
        let out = listed.binary(function, &x, &y);
        let fed = [tensor(SPECIAL.to_vec(), &[count, 1]), tensor(SPECIAL.to_vec(), &[1, count])];
        let (theirs, mine) = both(&listed, &fed, &[out]);
        for (place, (mine, theirs)) in mine[0].iter().zip(&theirs[0]).enumerate() {
            alike(name, SPECIAL[place / count], *mine, *theirs);
        }
    }
}
