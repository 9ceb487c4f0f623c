//! Devices, by the names of the backends that this build may have.

use burn::tensor::Device;
use clap::ValueEnum;

/// A backend's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeviceName {
    /// Burn's portable backend for processors; always available.
    Flex,
    /// CubeCL on processors; feature `cpu`.
    Cpu,
    /// NVIDIA GPUs; feature `cuda`.
    Cuda,
    /// GPUs through WebGPU, Vulkan or Metal; feature `wgpu`.
    Wgpu,
}

/// Why a device cannot be used.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum DeviceError {
    /// The backend was not compiled in.
    #[error("--device {name} is not in this build (it has {}); build with --features {name}", present().join(", "))]
    NotCompiledIn { name: &'static str },
    /// The backend finds no device, or cannot use it.
    #[error("--device {name} does not work on this machine: {message}")]
    NotThere { name: &'static str, message: String },
}

burn_pipeline::debug_as_text!(DeviceError);

impl DeviceName {
    fn name(self) -> &'static str {
        match self {
            DeviceName::Flex => "flex",
            DeviceName::Cpu => "cpu",
            DeviceName::Cuda => "cuda",
            DeviceName::Wgpu => "wgpu",
        }
    }

    /// The device, if this build has it and it responds.
    ///
    /// # Errors
    /// Returns a [`DeviceError`] if the device cannot be used.
    pub fn open(self) -> Result<Device, DeviceError> {
        let name = self.name();
        let device = match self {
            DeviceName::Flex => Device::flex(),
            #[cfg(feature = "cpu")]
            DeviceName::Cpu => Device::cpu(),
            #[cfg(feature = "cuda")]
            DeviceName::Cuda => Device::cuda(0),
            #[cfg(feature = "wgpu")]
            DeviceName::Wgpu => Device::wgpu(burn::tensor::DeviceKind::DefaultDevice),
            #[allow(unreachable_patterns, reason = "reached unless every backend is compiled in")]
            _ => return Err(DeviceError::NotCompiledIn { name }),
        };
        // A missing driver or GPU makes Burn panic at first use. Checking here avoids that during a run.
        let answers = std::panic::catch_unwind({
            let device = device.clone();
            move || burn::tensor::Tensor::<1>::ones([1], &device).into_data()
        });
        let message = "the backend failed at its first use".to_owned();
        answers.map(|_| device).map_err(|_| DeviceError::NotThere { name, message })
    }
}

/// The backends of this build.
fn present() -> Vec<&'static str> {
    let all = [
        ("flex", true),
        ("cpu", cfg!(feature = "cpu")),
        ("cuda", cfg!(feature = "cuda")),
        ("wgpu", cfg!(feature = "wgpu")),
    ];
    all.into_iter().filter(|(_, present)| *present).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_is_opened_if_it_is_in_the_build_and_refused_by_name_if_not() {
        assert!(DeviceName::Flex.open().is_ok());
        for device in [DeviceName::Cpu, DeviceName::Cuda, DeviceName::Wgpu] {
            let name = device.name();
            if !present().contains(&name) {
                let message = device.open().unwrap_err().to_string();
                assert!(message.contains(&format!("build with --features {name}")), "{message}");
            }
        }
    }
}
