//! The device that tests run on: Flex, or the device named by the variable `DEVICE` (`wgpu`, `cpu`, `cuda`), if
//! built in.
//!
//! `DEVICE=wgpu cargo test --features pipeline-tests/wgpu --test runtime interleaved`. The plain loop, which a
//! pipeline is compared with, runs on the same device. On devices other than Flex a launch takes as long as a layer
//! takes on Flex, so lists of cases are shortened with [`few`].

use burn::tensor::Device;
use clap::ValueEnum;
use pipeline_examples::device::DeviceName;
use std::sync::OnceLock;

/// The device.
///
/// # Panics
/// If `DEVICE` names an unknown device, or one that is not built in or does not answer.
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

/// All cases on Flex; the last `elsewhere` of them on other devices.
pub fn few<T>(mut cases: Vec<T>, elsewhere: usize) -> Vec<T> {
    if device() != Device::flex() {
        cases.drain(..cases.len().saturating_sub(elsewhere));
    }
    cases
}
