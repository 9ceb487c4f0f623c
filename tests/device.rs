//! The device that suites run on: Flex, or the one that the variable `DEVICE` names (`wgpu`, `cpu`, `cuda`), if it was built in.
//!
//! `DEVICE=wgpu cargo test --features pipeline-tests/wgpu --test runtime interleaved`. The plain loop that a pipeline is
//! compared with runs on the same device. Elsewhere than on Flex a launch takes as long as a layer does there, so that lists of
//! cases are cut to [`few`].

use burn::tensor::Device;
use clap::ValueEnum;
use pipeline_examples::device::DeviceName;
use std::sync::OnceLock;

/// The device.
///
/// # Panics
/// If `DEVICE` names none, or one that is not in this build or does not answer.
pub fn device() -> Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let open = || match std::env::var("DEVICE") {
        Err(_) => Device::flex(),
        Ok(name) => {
            let named = DeviceName::from_str(&name, true).unwrap_or_else(|error| panic!("DEVICE={name}: {error}"));
            named.open().unwrap_or_else(|error| panic!("DEVICE={name}: {error}"))
        }
    };
    DEVICE.get_or_init(open).clone()
}

/// All of a list of cases on Flex, the last so many on another device.
pub fn few<T>(mut cases: Vec<T>, elsewhere: usize) -> Vec<T> {
    if device() != Device::flex() {
        cases.drain(..cases.len().saturating_sub(elsewhere));
    }
    cases
}
