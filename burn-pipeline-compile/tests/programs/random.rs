//! Random programs: element-wise functions, broadcasts, reductions, views, matmuls and operations of extensions, of odd
//! sizes.
//!
//! Functions are chosen so that values stay small and rounding is not magnified; so both ways must be near to each
//! other.

use crate::listed::{Listed, binary, unary};
use crate::run::{both, tensor};
use burn::backend::flex::FlexTensor;
use burn::backend::ir::{NumericOperationIr, TensorIr};
use proptest::prelude::*;

/// A step of a random program; numbers select among the tensors so far.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Unary(usize, usize),
    Binary(usize, usize, usize),
    Scalar(usize, f64),
    Reduce(usize, usize, usize),
    Expand(usize),
    Mask(usize, usize, f64),
    Flatten(usize),
    Swap(usize, usize),
    Slice(usize, usize),
    Matmul(usize, usize),
    Ones(usize),
    Place(usize, usize, usize),
    Exchange(usize, usize),
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    let at = 0..1000_usize;
    prop_oneof![
        4 => (at.clone(), 0..7_usize).prop_map(|(at, function)| Step::Unary(at, function)),
        5 => (at.clone(), at.clone(), 0..3_usize).prop_map(|(x, y, function)| Step::Binary(x, y, function)),
        2 => (at.clone(), -1.0..1.0).prop_map(|(at, value)| Step::Scalar(at, value)),
        3 => (at.clone(), 0..3_usize, 0..4_usize).prop_map(|(at, axis, how)| Step::Reduce(at, axis, how)),
        2 => at.clone().prop_map(Step::Expand),
        1 => (at.clone(), at.clone(), -1.0..1.0).prop_map(|(x, y, bound)| Step::Mask(x, y, bound)),
        1 => at.clone().prop_map(Step::Flatten),
        1 => (at.clone(), 0..3_usize).prop_map(|(at, pair)| Step::Swap(at, pair)),
        1 => (at.clone(), 0..3_usize).prop_map(|(at, dim)| Step::Slice(at, dim)),
        1 => (at.clone(), at.clone()).prop_map(|(x, y)| Step::Matmul(x, y)),
        1 => at.clone().prop_map(Step::Ones),
        1 => (at.clone(), at.clone(), 0..3_usize).prop_map(|(x, y, dim)| Step::Place(x, y, dim)),
        2 => (at.clone(), at).prop_map(|(x, y)| Step::Exchange(x, y)),
    ]
}

fn small() -> impl Strategy<Value = usize> {
    prop_oneof![1 => Just(0), 3 => Just(1), 9 => 2..6_usize]
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![1 => Just(0), 2 => Just(1), 3 => 2..5_usize, 1 => Just(17), 1 => Just(33), 1 => Just(64), 1 => Just(130)]
}

/// Shapes that can be broadcast to each other.
fn fit(x: &TensorIr, y: &TensorIr) -> bool {
    x.shape.num_dims() == y.shape.num_dims()
        && x.shape.iter().zip(y.shape.iter()).all(|(&x, &y)| x == y || x == 1 || y == 1)
}

const UNARY: [&str; 7] = ["neg", "abs", "tanh", "sigmoid", "erf", "gelu", "relu"];
const BINARY: [&str; 3] = ["add", "sub", "mul"];

pub(crate) fn grow(listed: &mut Listed, tensors: &mut Vec<TensorIr>, base: &[usize], step: &Step) {
    let pick = |at: usize| tensors[at % tensors.len()].clone();
    let made = match *step {
        Step::Unary(at, function) => listed.unary(unary(UNARY[function]), &pick(at)),
        Step::Binary(x, y, function) => {
            let x = pick(x);
            let fitting: Vec<TensorIr> = tensors.iter().filter(|other| fit(&x, other)).cloned().collect();
            let made = listed.binary(binary(BINARY[function]), &x, &fitting[y % fitting.len()]);
            // Values stay between -1 and 1.
            tensors.push(made.clone());
            listed.unary(unary("tanh"), &made)
        }
        Step::Scalar(at, value) if value < -0.5 => {
            let power = listed.power(&pick(at), if value < -0.75 { 2.0 } else { 3.0 });
            listed.unary(unary("tanh"), &power)
        }
        Step::Scalar(at, value) => listed.scalar(NumericOperationIr::AddScalar, &pick(at), value),
        Step::Reduce(at, axis, how) => {
            let x = pick(at);
            let axis = axis % x.shape.num_dims();
            if x.shape.num_elements() == 0 {
                return;
            }
            match how {
                0 => listed.reduce(NumericOperationIr::MaxDim, &x, x.shape.num_dims() - 1),
                1 => listed.reduce(NumericOperationIr::MeanDim, &x, axis),
                _ => {
                    let sum = listed.reduce(NumericOperationIr::SumDim, &x, axis);
                    listed.scalar(NumericOperationIr::MulScalar, &sum, 0.01)
                }
            }
        }
        Step::Expand(at) => {
            let x = pick(at);
            if x.shape.num_dims() != 3 || x.shape.iter().zip(base).any(|(&x, &base)| x != 1 && x != base) {
                return;
            }
            listed.expand(&x, base)
        }
        Step::Mask(x, y, bound) => {
            let x = pick(x);
            // Masks come from what is fed, or rounding would turn truth values over.
            let fed: Vec<TensorIr> = listed.fed.iter().filter(|fed| fed.shape == x.shape).cloned().collect();
            let Some(of) = fed.get(y % fed.len().max(1)) else { return };
            let mask = listed.greater_than(of, bound);
            listed.mask_fill(&x, &mask, bound)
        }
        Step::Flatten(at) => {
            let x = pick(at);
            let Some((last, rows)) = x.shape.split_last() else { return };
            let shape = if rows.len() == 2 { vec![rows[0] * rows[1], *last] } else { return };
            listed.reshape(&x, &shape)
        }
        Step::Swap(at, pair) => {
            let x = pick(at);
            let dims = x.shape.num_dims();
            listed.swap(&x, pair % dims, (pair + 1) % dims)
        }
        Step::Slice(at, dim) => {
            let x = pick(at);
            let dim = dim % x.shape.num_dims();
            // Flex fails on slices of tensors without elements.
            if x.shape[dim] < 2 || x.shape.num_elements() == 0 {
                return;
            }
            listed.slice(&x, dim, 1)
        }
        Step::Matmul(x, y) => {
            let (x, y) = (pick(x), pick(y));
            let y = if x.shape.num_dims() == y.shape.num_dims() { y } else { x.clone() };
            let (rank, turned) = (x.shape.num_dims(), listed.swap(&y, y.shape.num_dims() - 2, y.shape.num_dims() - 1));
            let fits = x.shape[rank - 1] == turned.shape[rank - 2]
                && (0..rank - 2).all(|dim| x.shape[dim] == turned.shape[dim]);
            if !fits || x.shape.num_elements() == 0 || turned.shape.num_elements() == 0 {
                return;
            }
            let matmul = listed.matmul(&x, &turned);
            let small = listed.scalar(NumericOperationIr::MulScalar, &matmul, 0.05);
            listed.unary(unary("tanh"), &small)
        }
        Step::Place(x, y, dim) => {
            let x = pick(x);
            let alike: Vec<TensorIr> = tensors.iter().filter(|other| other.shape == x.shape).cloned().collect();
            let (y, dim) = (alike[y % alike.len()].clone(), dim % x.shape.num_dims());
            if x.shape.num_elements() == 0 {
                return;
            }
            // Two slices side by side, with a gap behind them every other time.
            let (mut shape, size) = (x.shape.to_vec(), x.shape[dim]);
            shape[dim] = 2 * size + size % 2;
            let (one, other) = (listed.placed(&x, &shape, dim, 0), listed.placed(&y, &shape, dim, size));
            listed.binary(binary("add"), &one, &other)
        }
        Step::Exchange(x, y) => {
            listed.start("start", &pick(x));
            let sum = listed.custom("wait", &pick(y));
            listed.scalar(NumericOperationIr::MulScalar, &sum, 0.5)
        }
        Step::Ones(at) => {
            let x = pick(at);
            let ones = listed.ones(&x.shape);
            listed.binary(binary("mul"), &ones, &x)
        }
    };
    tensors.push(made);
}

pub(crate) fn noise(shape: &[usize], seed: usize) -> FlexTensor {
    let count: usize = shape.iter().product();
    let value = |at: usize| (((at * 2_654_435_761 + seed * 40_503) % 65_521) as f32 / 32_760.5) - 1.0;
    tensor((0..count).map(value).collect(), shape)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn compiled_programs_give_what_the_interpreter_gives(
        base in (small(), size(), size()).prop_map(|(x, y, z)| [x, y, z]),
        steps in prop::collection::vec(step(), 1..24),
        kept in prop::collection::vec(0..1000_usize, 1..5),
    ) {
        let mut listed = Listed::default();
        let shapes = [[base[0], base[1], base[2]], [1, base[1], base[2]], [base[0], base[1], 1], [1, 1, base[2]], base];
        let mut tensors: Vec<TensorIr> = shapes.iter().map(|shape| listed.feed(shape)).collect();
        let fed: Vec<FlexTensor> = shapes.iter().enumerate().map(|(seed, shape)| noise(shape, seed)).collect();
        for step in &steps {
            grow(&mut listed, &mut tensors, &base, step);
        }
        let mut wanted: Vec<TensorIr> = kept.iter().map(|at| tensors[at % tensors.len()].clone()).collect();
        wanted.push(tensors.last().unwrap().clone());
        wanted.sort_by_key(|tensor| tensor.id.value());
        wanted.dedup_by_key(|tensor| tensor.id);
        let (expected, given) = both(&listed, &fed, &wanted);
        for (tensor, (expected, given)) in wanted.iter().zip(expected.iter().zip(&given)) {
            prop_assert_eq!(expected.len(), given.len());
            for (expected, given) in expected.iter().zip(given) {
                let near = (expected - given).abs() <= 2e-4 * expected.abs().max(1.0);
                prop_assert!(near, "{} instead of {} in {}", given, expected, tensor.id.value());
            }
        }
    }
}
