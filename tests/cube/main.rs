//! The runtime on CubeCL devices: on processors with feature `cpu`, on a GPU with `cuda` or `wgpu`. Small sizes, because matrix
//! products on CubeCL's CPU runtime are slow; `tests/runtime` proves the numbers at length on Flex.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests fail by panicking and print what they covered")]

mod groups;
mod kernels;
mod lacking;
mod mixed;
mod moe;
// On CubeCL's CPU runtime the products of their model take minutes.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod predicted;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod queues;
mod refusals;
mod release;
mod seam;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod spread;
mod training;

use burn::tensor::Device;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The devices of this build.
fn devices() -> Vec<Device> {
    let mut devices = devices_in_f64();
    #[cfg(feature = "wgpu")]
    devices.push(Device::wgpu(burn::tensor::DeviceKind::DefaultDevice));
    devices
}

/// Those of them that finite differences can be taken on. WGSL has no functions of f64: where a driver has the type all the
/// same, exponentials and logarithms come out wrong, in Burn's own operations as well.
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

/// A build for several devices also runs where there is no CUDA driver; every other device must be there.
fn is_expected(device: &Device) -> bool {
    let several = cfg!(any(feature = "cpu", feature = "wgpu"));
    !several || !format!("{device:?}").contains("Cuda") || refusals::answers(device)
}

/// Is it a GPU, or what stands for one?
#[cfg(any(feature = "wgpu", feature = "cuda"))]
fn is_fast(device: &Device) -> bool {
    !format!("{device:?}").contains("Cpu")
}

/// One test at a time: they share a device, and one of them reads how much of its memory is in use.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn floats<const D: usize>(tensor: burn::tensor::Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

/// Equal up to rounding, relative to the largest number there is.
fn assert_close(got: &[f32], expected: &[f32], place: &str) {
    assert_eq!(got.len(), expected.len(), "{place}");
    let largest = expected.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        let off = (got - expected).abs();
        assert!(off <= 2e-6 * largest.max(1e-3), "{place}: number {index} is {got}, expected {expected}");
    }
}
