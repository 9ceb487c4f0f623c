//! Programs in half precision: the same lists with other types, alone and between casts.

use crate::listed::{BINARY, Listed, UNARY, binary};
use crate::random::{Step, grow, noise, step};
use crate::run::{both, tensor, values};
use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::backend::ir::{
    BaseOperationIr, CastOpIr, IrVisitorMut, NumericOperationIr, OperationIr, TensorId, TensorIr, TensorStatus,
};
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, FloatDType, TensorData, bf16, f16};
use burn_pipeline_compile::Memory;
use proptest::prelude::*;
use std::collections::HashMap;

pub(crate) const TYPES: [DType; 2] = [DType::BF16, DType::F16];

pub(crate) fn cast(value: &FlexTensor, dtype: DType) -> FlexTensor {
    Flex::float_cast(value.clone(), FloatDType::from(dtype))
}

/// Half a unit in the last place of a number of this type, relative to it, and absolute for the smallest.
pub(crate) fn half_unit(dtype: DType) -> (f64, f64) {
    if dtype == DType::BF16 { (2f64.powi(-8), 1e-38) } else { (2f64.powi(-11), 2f64.powi(-25)) }
}

/// Gives tensors another type.
struct Typed(DType);

impl IrVisitorMut for Typed {
    fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
        if tensor.dtype == DType::F32 {
            tensor.dtype = self.0;
        }
    }
}

/// An operation on tensors of this type.
pub(crate) fn typed(op: &OperationIr, dtype: DType) -> OperationIr {
    let mut op = op.clone();
    op.visit_mut(&mut Typed(dtype));
    match op {
        OperationIr::NumericFloat(_, op) => OperationIr::NumericFloat(dtype, op),
        OperationIr::Float(_, op) => OperationIr::Float(dtype, op),
        op => op,
    }
}

/// Gives tensors other ids.
struct Renamed<'a>(&'a HashMap<TensorId, TensorId>);

impl IrVisitorMut for Renamed<'_> {
    fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
        tensor.id = self.0.get(&tensor.id).copied().unwrap_or(tensor.id);
    }
}

/// The list in half precision. Operations that `wide` selects compute in `f32`, between casts.
pub(crate) fn in_half(listed: &Listed, dtype: DType, wide: impl Fn(usize) -> bool) -> Listed {
    let mut half = listed.emptied();
    half.fed.iter_mut().for_each(|fed| fed.dtype = dtype);
    let float = |tensor: &&TensorIr| tensor.dtype == DType::F32;
    for (place, op) in listed.operations.iter().enumerate() {
        let casts = wide(place) && !matches!(op, OperationIr::Custom(_)) && op.outputs().any(|out| float(&out));
        if !casts {
            half.operations.push(typed(op, dtype));
            continue;
        }
        let mut names = HashMap::new();
        let inputs: Vec<TensorIr> = op.inputs().filter(float).cloned().collect();
        for input in inputs {
            let widened = half.cast(&TensorIr { dtype, ..input.clone() }, DType::F32);
            names.insert(input.id, widened.id);
        }
        let out = op.outputs().next().unwrap().clone();
        // The result is made under a name of its own, by a cast that is then dropped.
        let own = half.cast(&out, DType::F32);
        half.operations.pop();
        names.insert(out.id, own.id);
        let mut op = op.clone();
        op.visit_mut(&mut Renamed(&names));
        half.operations.push(op);
        let (input, out) = (own, TensorIr { dtype, status: TensorStatus::NotInit, ..out });
        half.operations.push(OperationIr::BaseFloat(BaseOperationIr::Cast(CastOpIr { input, out })));
    }
    half
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }).collect()
}

pub(crate) fn in_type(tensors: &[TensorIr], dtype: DType) -> Vec<TensorIr> {
    let of = |tensor: &TensorIr| TensorIr { dtype, ..tensor.clone() };
    tensors.iter().map(of).collect()
}

/// Shapes of one base, which can be broadcast to each other, and what is fed.
fn fed(listed: &mut Listed, base: [usize; 3], dtype: DType) -> (Vec<TensorIr>, Vec<FlexTensor>) {
    let shapes = [base, [1, base[1], base[2]], [base[0], base[1], 1], [1, 1, base[2]], base];
    let tensors = shapes.iter().map(|shape| listed.feed(shape)).collect();
    (tensors, shapes.iter().enumerate().map(|(seed, shape)| cast(&noise(shape, seed), dtype)).collect())
}

/// Grows a program by a step that rounds each result once and adds nothing up, so that bits are known.
fn grow_exact(listed: &mut Listed, tensors: &mut Vec<TensorIr>, base: &[usize], step: &Step) {
    match *step {
        Step::Unary(_, 2..6) | Step::Reduce(..) | Step::Matmul(..) => {}
        Step::Scalar(_, value) if value < -0.5 => {}
        Step::Binary(x, y, function) => {
            let x = tensors[x % tensors.len()].clone();
            let alike: Vec<&TensorIr> = tensors.iter().filter(|other| other.shape == x.shape).collect();
            let function = binary(["add", "sub", "mul"][function]);
            let made = listed.binary(function, &x, &alike[y % alike.len()].clone());
            tensors.push(made);
        }
        _ => grow(listed, tensors, base, step),
    }
}

/// What is kept of a program.
fn kept(tensors: &[TensorIr], places: &[usize], dtype: DType) -> Vec<TensorIr> {
    let last = tensors.len() - 1;
    let mut wanted: Vec<TensorIr> = places
        .iter()
        .chain([&last])
        .map(|at| tensors[at % tensors.len()].clone())
        .filter(|t| t.dtype == DType::F32)
        .collect();
    wanted.sort_by_key(|tensor| tensor.id.value());
    wanted.dedup_by_key(|tensor| tensor.id);
    in_type(&wanted, dtype)
}

fn base() -> impl Strategy<Value = [usize; 3]> {
    (1..5_usize, 1..20_usize, 1..70_usize).prop_map(|(x, y, z)| [x, y, z])
}

/// 0.830078125 is a tie in bf16, and 0.830322265625 in f16.
#[test]
fn scalars_just_above_a_tie_are_rounded_as_the_interpreter_rounds_them() {
    for (dtype, tie, unit) in [(DType::BF16, 0.830078125, 2f32.powi(-9)), (DType::F16, 0.830322265625, 2f32.powi(-12))]
    {
        for above in [0.0, 1e-12, 1e-9, 3e-7, 1e-6] {
            let mut listed = Listed::default();
            let x = listed.feed(&[2]);
            let mask = listed.greater_than(&x, tie + above);
            let filled = listed.mask_fill(&x, &mask, tie + above);
            let half = in_half(&listed, dtype, |_| false);
            let around = tensor(vec![tie as f32 - unit, tie as f32 + unit], &[2]);
            let (expected, given) = both(&half, &[cast(&around, dtype)], &in_type(&[filled], dtype));
            assert_eq!(expected, given, "{dtype:?}: {tie} + {above}");
        }
    }
}

/// The square of 300 is infinite in f16, and that of 1.1328125 is rounded in bf16.
#[test]
fn small_whole_powers_give_the_bits_of_the_interpreter() {
    for dtype in TYPES {
        for exponent in [-2.0, -1.0, 1.0, 2.0, 3.0] {
            let mut listed = Listed::default();
            let x = listed.feed(&[1, 64]);
            let power = listed.power(&x, exponent);
            let half = in_half(&listed, dtype, |_| false);
            let mut numbers = vec![0.0, -0.0, 300.0, 1.1328125, -1.1328125, 1e-4, f32::INFINITY, f32::NAN];
            numbers.extend((numbers.len()..64).map(|at| 0.37 * (at as f32 - 30.0)));
            let (expected, given) = both(&half, &[cast(&tensor(numbers, &[1, 64]), dtype)], &in_type(&[power], dtype));
            assert_eq!(bits(&expected[0]), bits(&given[0]), "{dtype:?}: {exponent}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn functions_views_and_casts_give_the_bits_of_the_interpreter(
        base in base(),
        steps in prop::collection::vec(step(), 1..24),
        places in prop::collection::vec(0..1000_usize, 1..5),
        wide in prop::collection::vec(any::<bool>(), 7),
        which in 0..2_usize,
    ) {
        let (mut listed, dtype) = (Listed::default(), TYPES[which]);
        let (mut tensors, fed) = fed(&mut listed, base, dtype);
        steps.iter().for_each(|step| grow_exact(&mut listed, &mut tensors, &base, step));
        let wanted = kept(&tensors, &places, dtype);
        let half = in_half(&listed, dtype, |place| wide[place % wide.len()]);
        let (expected, given) = both(&half, &fed, &wanted);
        for (tensor, (expected, given)) in wanted.iter().zip(expected.iter().zip(&given)) {
            prop_assert_eq!(bits(expected), bits(given), "{}", tensor.id.value());
        }
    }

    #[test]
    fn compiled_programs_give_what_the_interpreter_gives_up_to_roundings(
        base in base(),
        steps in prop::collection::vec(step(), 1..16),
        places in prop::collection::vec(0..1000_usize, 1..5),
        wide in prop::collection::vec(any::<bool>(), 7),
        which in 0..2_usize,
    ) {
        let (mut listed, dtype) = (Listed::default(), TYPES[which]);
        let (mut tensors, fed) = fed(&mut listed, base, dtype);
        steps.iter().for_each(|step| grow(&mut listed, &mut tensors, &base, step));
        let wanted = kept(&tensors, &places, dtype);
        let half = in_half(&listed, dtype, |place| wide[place % wide.len()]);
        let (expected, given) = both(&half, &fed, &wanted);
        // Two ways that round at one place each differ by a unit; later steps may add a few.
        let within = 16.0 * half_unit(dtype).0;
        for (expected, given) in expected.iter().flatten().zip(given.iter().flatten()) {
            let near = f64::from((expected - given).abs()) <= within * f64::from(expected.abs().max(1.0));
            prop_assert!(near, "{} instead of {}", given, expected);
        }
    }
}

/// A region rounds a number in its tile or only as it stores it. Both give the same bits.
#[test]
fn rounded_numbers_are_the_same_inside_and_outside_of_their_region() {
    let shape = [7, 33];
    for dtype in TYPES {
        for kept in 1..32_usize {
            let mut listed = Listed::default();
            let x = listed.feed(&shape);
            let y = listed.scalar(NumericOperationIr::MulScalar, &x, 1.1);
            let rounded = listed.cast(&y, dtype);
            let view = TensorIr { dtype, ..listed.reshape(&rounded, &[33, 7]) };
            let Some(OperationIr::BaseFloat(BaseOperationIr::Reshape(op))) = listed.operations.last_mut() else {
                panic!("the view is a reshape")
            };
            op.out.dtype = dtype;
            let widened = listed.cast(&rounded, DType::F32);
            let z = listed.scalar(NumericOperationIr::MulScalar, &widened, 1.1);
            let all = [y, rounded, view, widened, z];
            let wanted: Vec<TensorIr> =
                all.into_iter().enumerate().filter(|(at, _)| kept >> at & 1 == 1).map(|(_, tensor)| tensor).collect();
            let (expected, given) = both(&listed, &[noise(&shape, 3)], &wanted);
            let bits = |all: &[Vec<f32>]| all.iter().flatten().map(|x| x.to_bits()).collect::<Vec<u32>>();
            assert_eq!(bits(&expected), bits(&given), "{kept:b} in {dtype:?}");
        }
    }
}

/// All numbers of a type.
fn all_numbers(dtype: DType) -> FlexTensor {
    let bits = 0..=u16::MAX;
    FlexTensor::from_data(match dtype {
        DType::BF16 => TensorData::new(bits.map(bf16::from_bits).collect(), [256, 256]),
        _ => TensorData::new(bits.map(f16::from_bits).collect(), [256, 256]),
    })
}

/// The number of places of [`all_numbers`] that differ; each by one unit in the last place at most.
fn differ(expected: &[f32], given: &[f32], dtype: DType, of: &str) -> usize {
    let pairs = (0..=u16::MAX).zip(expected.iter().zip(given));
    let unequal = pairs.filter(|(_, (x, y))| x.to_bits() != y.to_bits() && !(x.is_nan() && y.is_nan()));
    unequal.fold(0, |count, (bits, (x, y))| {
        let number = |x: f32| match dtype {
            DType::BF16 => i32::from(bf16::from_f32(x).to_bits().cast_signed()),
            _ => i32::from(f16::from_f32(x).to_bits().cast_signed()),
        };
        // Flex computes `gelu` of numbers below -2 with few digits.
        let input = if dtype == DType::BF16 { bf16::from_bits(bits).to_f32() } else { f16::from_bits(bits).to_f32() };
        let few_digits = of == "gelu" && input < -2.0 && (x - y).abs() <= 1e-6;
        let near = (number(*x) - number(*y)).abs() <= 1 || x == y || few_digits;
        assert!(near, "{of} gives {y:e}, not {x:e}, in {dtype:?}");
        count + usize::from(x != y && !few_digits)
    })
}

#[test]
fn functions_of_all_numbers_are_those_of_flex() {
    for dtype in TYPES {
        let x = all_numbers(dtype);
        for (name, function) in UNARY {
            let mut listed = Listed::default();
            let input = listed.feed(&[256, 256]);
            let out = listed.unary(function, &input);
            let half = in_half(&listed, dtype, |_| false);
            let (expected, given) = both(&half, &[x.clone()], &in_type(&[out], dtype));
            let count = differ(&expected[0], &given[0], dtype, name);
            // Approximated within some units in the last place of `f32`, which decide a rounding now and then.
            let most = if ["exp", "log", "tanh", "erf", "sigmoid", "gelu"].contains(&name) { 40 } else { 0 };
            println!("{name} in {dtype:?}: {count} of 65,536 numbers are rounded to the other side");
            assert!(count <= most, "{name} in {dtype:?}: {count}");
        }
    }
}

#[test]
fn functions_of_two_numbers_and_of_scalars_give_the_bits_of_flex() {
    for dtype in TYPES {
        let mut listed = Listed::default();
        let [x, y] = [0, 1].map(|_| listed.feed(&[256, 256]));
        let mut wanted: Vec<TensorIr> =
            BINARY.iter().take(5).map(|(_, function)| listed.binary(*function, &x, &y)).collect();
        for value in [0.1, 3.0, 1e-3, -7.7] {
            for scalar in [NumericOperationIr::AddScalar, NumericOperationIr::SubScalar, NumericOperationIr::MulScalar]
            {
                wanted.push(listed.scalar(scalar, &x, value));
            }
            for scalar in [NumericOperationIr::DivScalar, NumericOperationIr::ClampMin, NumericOperationIr::ClampMax] {
                wanted.push(listed.scalar(scalar, &x, value));
            }
            let mask = listed.greater_than(&y, value);
            wanted.push(listed.mask_fill(&x, &mask, value));
            wanted.push(listed.mask_where(&x, &mask, &y));
        }
        let half = in_half(&listed, dtype, |_| false);
        let turned = Flex::float_transpose(all_numbers(dtype));
        let (expected, given) = both(&half, &[all_numbers(dtype), turned], &in_type(&wanted, dtype));
        for (at, (expected, given)) in expected.iter().zip(&given).enumerate() {
            assert_eq!(differ(expected, given, dtype, "a function"), 0, "function {at} in {dtype:?}");
        }
    }
}

#[test]
fn sums_and_means_are_exact_sums_rounded_once() {
    for (dtype, axes) in TYPES.into_iter().flat_map(|dtype| [(dtype, vec![2]), (dtype, vec![0, 1]), (dtype, vec![1])]) {
        let (mut listed, shape) = (Listed::default(), [3, 70, 130]);
        let x = listed.feed(&shape);
        let sum = listed.sum_dims(&x, &axes);
        let mean = listed.reduce(NumericOperationIr::MeanDim, &x, axes[0]);
        let half = in_half(&listed, dtype, |_| false);
        // In `f16`, the sum that a mean divides is too large.
        let given = cast(&Flex::float_add_scalar(noise(&shape, 5), 2000.0.into()), dtype);
        let wanted = in_type(&[sum.clone(), mean.clone()], dtype);
        let (_, got) = both(&half, &[given.clone()], &wanted);
        let of = values(given);
        for (tensor, got, axes, divided) in [(&sum, &got[0], &axes[..], false), (&mean, &got[1], &axes[..1], true)] {
            let count = if divided { shape[axes[0]] as f64 } else { 1.0 };
            let mut sums = vec![0.0_f64; tensor.shape.num_elements()];
            for (at, value) in of.iter().enumerate() {
                let index = [at / (70 * 130), at / 130 % 70, at % 130];
                let place =
                    (0..3).filter(|dim| !axes.contains(dim)).fold(0, |place, dim| place * shape[dim] + index[dim]);
                sums[place] += f64::from(*value) / count;
            }
            for (sum, got) in sums.iter().zip(got) {
                let (relative, _) = half_unit(dtype);
                let large = dtype == DType::F16 && *sum >= 65520.0;
                let near = (f64::from(*got) - sum).abs() <= relative * 1.01 * sum.abs();
                assert!(if large { got.is_infinite() } else { near }, "{got} instead of {sum}, {axes:?} in {dtype:?}");
            }
        }
    }
}

#[test]
fn half_precision_tensors_take_half_of_the_bytes() {
    let mut listed = Listed::default();
    let (x, w) = (listed.feed(&[64, 32]), listed.feed(&[32, 32]));
    let product = listed.matmul(&x, &w);
    let sum = listed.binary(binary("add"), &product, &x);
    let square = listed.binary(binary("mul"), &sum, &sum);
    let rows = listed.sum_dims(&square, &[0]);
    let peak = |listed: &Listed, dtype: DType| {
        let program = crate::run::compiled(listed, &in_type(&[sum.clone(), square.clone(), rows.clone()], dtype));
        assert!(program.summary().interpreted.is_empty(), "{program}");
        let mut memory = Memory::default();
        listed.fed.iter().for_each(|fed| memory.feed(fed, fed.shape.num_elements() * fed.dtype.size()));
        memory.run(&program);
        memory.bytes()
    };
    let whole = peak(&listed, DType::F32);
    for dtype in TYPES {
        assert_eq!(2 * peak(&in_half(&listed, dtype, |_| false), dtype), whole);
    }
}
