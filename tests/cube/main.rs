//! The runtime on CubeCL devices: on processors with feature `cpu`, on a GPU with `cuda` or `wgpu`. Sizes are small
//! because matmuls on CubeCL's CPU runtime are slow; `tests/runtime` checks the numbers at length on Flex.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests fail by panicking and print what they covered")]

mod groups;
mod kernels;
mod lacking;
mod mixed;
mod moe;
// On CubeCL's CPU runtime, the matmuls of this model take minutes.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod predicted;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod queues;
mod refusals;
mod release;
mod seam;
#[cfg(feature = "nccl")]
mod stand_in;
mod training;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod vocabulary;

use burn::tensor::{Device, Tensor};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Returns true in a process that computes on the stand-in for CUDA's driver.
fn over_stand_in() -> bool {
    std::env::var("STAND_IN_ROOMS").is_ok()
}

/// The devices of this build.
fn devices() -> Vec<Device> {
    if over_stand_in() {
        return devices_in_f64();
    }
    let others = [
        #[cfg(feature = "wgpu")]
        Device::wgpu(burn::tensor::DeviceKind::DefaultDevice),
    ];
    devices_in_f64().into_iter().chain(others).collect()
}

/// The devices that finite differences work on. WGSL has no f64 functions: even where a driver has the type,
/// exponentials and logarithms are wrong, in Burn's own operations as well.
fn devices_in_f64() -> Vec<Device> {
    vec![
        #[cfg(feature = "cpu")]
        Device::cpu(),
        #[cfg(feature = "cuda")]
        Device::cuda(0),
    ]
    .into_iter()
    .filter(is_expected)
    .collect()
}

/// Returns true if the device must be there. A build for several devices also runs without a CUDA driver. Over the
/// stand-in, CUDA is the only device.
fn is_expected(device: &Device) -> bool {
    let (several, cuda) = (cfg!(any(feature = "cpu", feature = "wgpu")), format!("{device:?}").contains("Cuda"));
    if over_stand_in() { cuda } else { !several || !cuda || refusals::answers(device) }
}

/// Returns true for a GPU, or a software device in its place.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
fn is_fast(device: &Device) -> bool {
    !format!("{device:?}").contains("Cpu")
}

/// How many times f32's rounding the tolerances on a device are. NVIDIA's matrix units round the factors of f32 matmuls
/// to TF32 (11 bits), and Burn's matmuls use them where they exist.
fn coarser(device: &Device) -> f32 {
    // One bit more than TF32 has.
    let matrix = Tensor::<2>::ones([64, 64], device) + 2f32.powi(-12);
    let exact = 64.0 * (1.0 + 2f32.powi(-12)).powi(2);
    let rounded = floats(matrix.clone().matmul(matrix)).iter().any(|x| (x - exact).abs() > 1e-5 * exact);
    if rounded { 128.0 } else { 1.0 }
}

/// Runs one test at a time: they share a device, and one of them measures its memory in use.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

/// Asserts equality up to rounding, relative to the largest number.
fn assert_close(got: &[f32], expected: &[f32], place: &str) {
    assert_eq!(got.len(), expected.len(), "{place}");
    let largest = expected.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        let off = (got - expected).abs();
        assert!(off <= 2e-6 * largest.max(1e-3), "{place}: number {index} is {got}, expected {expected}");
    }
}
