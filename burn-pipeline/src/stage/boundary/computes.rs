//! Does a device compute in a float type?
//!
//! 1. What a device lacks by its own account (`Device::supports_dtype`), it does not compute in: bf16 in WGSL.
//! 2. On CubeCL's devices the account is the runtime's, and not the processor's or the driver's. Its processor runtime names bf16, and
//!    where the processor has no instruction that rounds to it, calls a function that is not there (`__truncsfbf2`), reports
//!    nothing and leaves what was in memory. Mesa's software Vulkan names f64, and gives wrong exponentials. So other types than f32
//!    are tried there: a few numbers go through the functions that layers are made of, and must come back as the host
//!    computes them.
//! 3. A type is tried once a device and process.
//!
//! Parameters and buffers are asked about when a stage is built, what a stage casts to before its forward runs (`engine/casts.rs`), and
//! kernels of backend extensions ask before they run by themselves.

use super::any_tensor::{AnyTensor, is_cubecl};
use super::unwritten::first_line;
use burn::tensor::{DType, Device, Tensor, TensorData};
use parking_lot::Mutex;

/// Numbers that every type has.
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

/// A device, a type, and what came of trying it there.
type Tried = (Device, DType, Result<(), String>);

/// Whether a device computes in a float type: by its own account, and on CubeCL's devices by trying it, once a device, type and process.
/// Whoever adds kernels to Burn asks before one runs: Burn refuses no type, and the numbers of a kernel in one that is lacking are wrong.
///
/// # Errors
/// Why it does not, in words: the account, or the function that gave another number and which.
pub fn computes_in(device: &Device, dtype: DType) -> Result<(), String> {
    static TRIED: Mutex<Vec<Tried>> = Mutex::new(Vec::new());
    let device = device.clone().inner();
    if !device.supports_dtype(dtype) {
        return Err("it lacks the type (`Device::supports_dtype`)".to_owned());
    }
    if dtype == DType::F32 || !is_cubecl(&device) {
        return Ok(());
    }
    // Held meanwhile, so that of ranks that share the device one tries it.
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
        let got = crate::program::quietly(run).and_then(|read| read);
        let got = got.map_err(|why| format!("tried there, `{name}` failed: {}", first_line(&why)))?;
        let most = dtype.finfo().map_or(0.0, |info| (4.0 * info.epsilon).max(1e-10));
        let wrong = |x: f64, got: f64| got.is_nan() || (got - here(x)).abs() > most * here(x).abs();
        match NUMBERS.into_iter().zip(got.iter::<f64>()).find(|(x, got)| wrong(*x, *got)) {
            Some((x, got)) => Err(format!("tried there, `{name}` of {x} gave {got:e} for {:e}", here(x))),
            None => Ok(()),
        }
    }
}
