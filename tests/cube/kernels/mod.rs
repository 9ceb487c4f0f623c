//! The kernels of `burn-pipeline-moe`, compared with the same computation composed of Burn's operations on Flex,
//! whose gradients come from Burn's autodiff, and with finite differences of the kernels' own outputs in f64.
//!
//! For bf16, inputs are rounded first and the composed form computes in f32 from the rounded inputs. Only the
//! rounding of results remains, so kernels must accumulate in f32.

mod edges;
mod element_types;
mod grouped;
mod inject;
mod layer;
mod route;
mod rows;
mod z_loss;

use burn::tensor::{DType, Device, Int, Shape, Tensor, TensorData};

/// Numbers in [-1, 1).
pub(crate) fn noise(seed: u64, count: usize) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / (1u64 << 23) as f64 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// The types that kernels are tested in, if the device computes in them, each with the allowed difference relative
/// to the largest number. Compiling takes most of the time: in builds with wgpu, which lacks bf16, a device that
/// computes in bf16 skips f32.
pub(crate) fn types(device: &Device) -> impl Iterator<Item = (DType, f64)> {
    let in_bf16 = crate::refusals::takes(device, DType::BF16);
    let elsewhere = cfg!(feature = "wgpu") && in_bf16 && !crate::over_stand_in();
    let all = [(DType::F32, 5e-6, !elsewhere), (DType::BF16, 8e-3, in_bf16)];
    all.into_iter().filter(|(.., here)| *here).map(|(dtype, off, _)| (dtype, off))
}

/// The numbers rounded to the type.
pub(crate) fn rounded(values: &[f64], dtype: DType) -> Vec<f64> {
    let round = |value: &f64| match dtype {
        DType::BF16 => f32::from_bits((*value as f32).to_bits() & 0xffff_0000) as f64,
        DType::F32 => *value as f32 as f64,
        _ => *value,
    };
    values.iter().map(round).collect()
}

/// A tensor of these numbers.
pub(crate) fn tensor<const D: usize>(values: &[f64], shape: [usize; D], device: &Device, dtype: DType) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values.to_vec(), Shape::new(shape)), (device, dtype))
}

pub(crate) fn ints<const D: usize>(values: &[i64], shape: [usize; D], device: &Device) -> Tensor<D, Int> {
    Tensor::from_data(TensorData::new(values.to_vec(), Shape::new(shape)), device)
}

pub(crate) fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

pub(crate) fn integers<const D: usize>(tensor: Tensor<D, Int>) -> Vec<i64> {
    tensor.into_data().iter::<i64>().collect()
}

/// The largest difference, relative to the largest expected number.
pub(crate) fn difference(got: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len(), "the number of elements");
    let largest = expected.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
    let difference = got.iter().zip(expected).fold(0.0f64, |max, (a, b)| {
        assert!(a.is_finite(), "{a} came");
        max.max((a - b).abs())
    });
    if difference == 0.0 { 0.0 } else { difference / largest.max(1e-9) }
}

/// A function's output and its inputs' gradients, for a loss that weights the output with fixed numbers.
pub(crate) struct Differentiated {
    pub(crate) output: Vec<f64>,
    pub(crate) gradients: Vec<Vec<f64>>,
}

/// Runs a function of flat inputs with autodiff on a device.
pub(crate) fn differentiate<const D: usize>(
    inputs: &[Vec<f64>],
    device: &Device,
    dtype: DType,
    function: impl FnOnce(Vec<Tensor<1>>) -> Tensor<D>,
) -> Differentiated {
    weighed(inputs, device, dtype, dtype, function)
}

/// Asserts that kernels on a device agree with the composed form on Flex.
pub(crate) fn assert_agree<const D: usize>(
    place: &str,
    inputs: &[Vec<f64>],
    device: &Device,
    (dtype, tolerance): (DType, f64),
    kernel: impl FnOnce(Vec<Tensor<1>>) -> Tensor<D>,
    composed: impl FnOnce(Vec<Tensor<1>>) -> Tensor<D>,
) {
    let inputs: Vec<Vec<f64>> = inputs.iter().map(|values| rounded(values, dtype)).collect();
    let got = differentiate(&inputs, device, dtype, kernel);
    let expected = weighed(&inputs, &Device::flex(), DType::F32, dtype, composed);
    let distance = difference(&got.output, &expected.output);
    assert!(distance <= tolerance, "{place} in {dtype:?}: the output is {distance:e} off");
    for (input, (got, expected)) in got.gradients.iter().zip(&expected.gradients).enumerate() {
        let distance = difference(got, expected);
        assert!(distance <= tolerance, "{place} in {dtype:?}: the gradient of input {input} is {distance:e} off");
    }
}

/// Like [`differentiate`], with the fixed weights rounded to another type than the function computes in.
fn weighed<const D: usize>(
    inputs: &[Vec<f64>],
    device: &Device,
    dtype: DType,
    rounded_to: DType,
    function: impl FnOnce(Vec<Tensor<1>>) -> Tensor<D>,
) -> Differentiated {
    let device = device.clone().autodiff();
    let leaf = |values: &Vec<f64>| tensor(values, [values.len()], &device, dtype).require_grad();
    let leaves: Vec<Tensor<1>> = inputs.iter().map(leaf).collect();
    let output = function(leaves.clone());
    let shape = output.dims();
    let weights = rounded(&noise(99, shape.iter().product()), rounded_to);
    let gradients = (output.clone() * tensor(&weights, shape, &device, dtype)).sum().backward();
    let gradient = |leaf: Tensor<1>| numbers(leaf.grad(&gradients).expect("an input without gradient"));
    Differentiated { output: numbers(output), gradients: leaves.into_iter().map(gradient).collect() }
}

/// Compares the kernels' gradients with central differences of their own output, along one direction per input.
pub(crate) fn assert_finite_differences<const D: usize>(
    place: &str,
    inputs: &[Vec<f64>],
    device: &Device,
    kernel: impl Fn(Vec<Tensor<1>>) -> Tensor<D>,
) {
    const STEP: f64 = 1e-5;
    let got = differentiate(inputs, device, DType::F64, &kernel);
    for (input, gradient) in got.gradients.iter().enumerate() {
        let direction = noise(7 + input as u64, inputs[input].len());
        let loss = |step: f64| {
            let mut moved = inputs.to_vec();
            moved[input].iter_mut().zip(&direction).for_each(|(x, along)| *x += step * along);
            let leaves = moved.iter().map(|values| tensor(values, [values.len()], device, DType::F64)).collect();
            let output = numbers(kernel(leaves));
            output.iter().zip(noise(99, output.len())).map(|(x, weight)| x * weight).sum::<f64>()
        };
        let expected = (loss(STEP) - loss(-STEP)) / (2.0 * STEP);
        let along: f64 = gradient.iter().zip(&direction).map(|(g, along)| g * along).sum();
        let scale = gradient.iter().zip(&direction).map(|(g, along)| (g * along).abs()).sum::<f64>().max(1e-6);
        let off = (along - expected).abs() / scale;
        assert!(off < 1e-7, "{place}: along input {input} the gradient says {along}, differences {expected}");
    }
}
