//! Checks whether a device computes in a float type.
//!
//! 1. A device does not compute in a type that it reports as unsupported (`Device::supports_dtype`), such as bf16 in
//!    WGSL.
//! 2. CubeCL's devices report what the runtime supports, not what the processor or the driver does. Its processor
//!    runtime reports bf16; where the processor has no instruction that rounds to bf16, it calls a missing function
//!    (`__truncsfbf2`), reports nothing and leaves the memory as it was. Mesa's software Vulkan reports f64 and
//!    computes wrong exponentials. So types other than f32 are probed there: a few numbers go through the functions
//!    that layers are made of, and the results must be those of the host.
//! 3. A type is probed once per device and process.
//!
//! Parameters and buffers are checked when a stage is built; types that a stage casts to, before its forward runs
//! (`engine/casts.rs`). Kernels of backend extensions call [`computes_in`] themselves before they run.

use super::any_tensor::{AnyTensor, is_cubecl};
use super::unwritten::first_line;
use crate::panics::quietly;
use burn::tensor::{DType, Device, Tensor, TensorData};
use parking_lot::Mutex;

/// Numbers that every type can represent.
const NUMBERS: [f64; 4] = [0.25, 0.5, 1.5, 3.0];

/// A function, on the device and on the host.
struct Function {
    name: &'static str,
    there: fn(Tensor<1>) -> Tensor<1>,
    here: fn(f64) -> f64,
}

const FUNCTIONS: [Function; 6] = [
    Function { name: "square", there: |x| x.clone() * x, here: |x| x * x },
    Function { name: "recip", there: Tensor::recip, here: f64::recip },
    Function { name: "sqrt", there: Tensor::sqrt, here: f64::sqrt },
    Function { name: "exp", there: Tensor::exp, here: f64::exp },
    Function { name: "log", there: Tensor::log, here: f64::ln },
    Function { name: "tanh", there: Tensor::tanh, here: f64::tanh },
];

/// A device, a type, and the result of probing it.
type Tried = (Device, DType, Result<(), String>);

/// Checks whether a device computes in a float type: by its own report and, on CubeCL's devices, by probing it once
/// per device, type and process. Code that adds kernels to Burn must call this before a kernel runs: Burn refuses no
/// type, and a kernel in an unsupported type gives wrong numbers.
///
/// # Errors
/// Returns the reason in words: the device's report, or the function that gave a wrong number, and the number.
pub fn computes_in(device: &Device, dtype: DType) -> Result<(), String> {
    static TRIED: Mutex<Vec<Tried>> = Mutex::new(Vec::new());
    let device = device.clone().inner();
    if !device.supports_dtype(dtype) {
        return Err("it does not support the type (`Device::supports_dtype`)".to_owned());
    }
    if dtype == DType::F32 || !is_cubecl(&device) {
        return Ok(());
    }
    // Locked while probing, so that only one of the ranks that share the device probes it.
    let mut tried = TRIED.lock();
    if let Some((.., known)) = tried.iter().find(|(one, its, _)| (one, *its) == (&device, dtype)) {
        return known.clone();
    }
    let found = FUNCTIONS.iter().try_for_each(|function| function.agrees(&device, dtype));
    tried.push((device, dtype, found.clone()));
    found
}

impl Function {
    fn agrees(&self, device: &Device, dtype: DType) -> Result<(), String> {
        let Self { name, there, here } = self;
        let run = || AnyTensor::new(there(Tensor::from_data(TensorData::from(NUMBERS), (device, dtype)))).into_data();
        let got = quietly(run).and_then(|read| read);
        let got = got.map_err(|why| format!("tried there, `{name}` failed: {}", first_line(&why)))?;
        let most = dtype.finfo().map_or(0.0, |info| (4.0 * info.epsilon).max(1e-10));
        let wrong = |x: f64, got: f64| got.is_nan() || (got - here(x)).abs() > most * here(x).abs();
        match NUMBERS.into_iter().zip(got.iter::<f64>()).find(|(x, got)| wrong(*x, *got)) {
            Some((x, got)) => Err(format!("tried there, `{name}` of {x} gave {got:e} for {:e}", here(x))),
            None => Ok(()),
        }
    }
}
