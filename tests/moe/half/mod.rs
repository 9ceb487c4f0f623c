//! The crate's layers in half precision: positions, counts and sums beyond the digits and the range of bf16 and f16,
//! and norms and routers that are kept in f32.

use crate::cases::noise;
use burn::module::{ModuleMapper, Param};
use burn::tensor::{DType, Device, Tensor};

mod counts;
mod kept;
mod rotary;

/// Each type with half a unit of its last place, relative to a number.
const HALVES: [(DType, f64); 2] = [(DType::BF16, 1.0 / 256.0), (DType::F16, 1.0 / 2048.0)];

/// Multiplies matrices, and rounds all parameters except those that `keeps` names.
struct Rounded {
    times: f64,
    half: DType,
    /// The type of the rounded numbers.
    to: DType,
    keeps: &'static str,
    path: Vec<String>,
}

impl Rounded {
    fn new(times: f64, half: DType, to: DType) -> Self {
        Self { times, half, to, keeps: "nothing", path: Vec::new() }
    }
}

impl ModuleMapper for Rounded {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn map_float<const R: usize>(&mut self, param: Param<Tensor<R>>) -> Param<Tensor<R>> {
        let kept = self.path.iter().any(|name| name.contains(self.keeps));
        param.map(|value| {
            let value = if R > 1 { value.mul_scalar(self.times) } else { value };
            if kept { value } else { value.cast(self.half).cast(self.to) }
        })
    }
}

/// Numbers of a half-precision type, as f32.
fn rounded<const R: usize>(seed: u64, shape: [usize; R], half: DType) -> Tensor<R> {
    let values = Tensor::<1>::from_floats(&*noise(seed, shape.iter().product()), &Device::flex());
    values.reshape(shape).cast(half).cast(DType::F32)
}

fn values<const R: usize>(tensor: Tensor<R>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// The largest difference, relative to the largest expected number.
fn apart(got: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    assert!(got.iter().all(|x| x.is_finite()), "{got:?}");
    let largest = expected.iter().fold(0.0f64, |max, x| max.max(x.abs()));
    got.iter().zip(expected).map(|(a, b)| (a - b).abs() / largest).fold(0.0, f64::max)
}
