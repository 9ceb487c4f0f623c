//! Whether the operations are kernels on a device, or composed of Burn's own.

use burn::tensor::{Device, Tensor};
use burn_pipeline::program::captured_for;

/// Is a stage being captured for a device with kernels?
pub(super) fn captured_for_kernels() -> bool {
    captured_for().is_some_and(|device| is_kernel_device(&device))
}

/// Is this tensor on a device where the operations of this module are kernels?
///
/// True on CubeCL devices, and for a stage that is captured for one: its replay runs the kernels.
pub fn has_kernels<const D: usize>(tensor: &Tensor<D>) -> bool {
    if is_captured(tensor) {
        return captured_for_kernels();
    }
    is_kernel_device(&tensor.device())
}

/// Does the tensor belong to a capture?
fn is_captured<const D: usize>(tensor: &Tensor<D>) -> bool {
    use burn::backend::DispatchTensorKind;
    match tensor.clone().into_dispatch().kind {
        DispatchTensorKind::Capture(_) => true,
        DispatchTensorKind::Autodiff(inner) => matches!(*inner, DispatchTensorKind::Capture(_)),
        _ => false,
    }
}

/// Are the operations of this module kernels on this device?
fn is_kernel_device(device: &Device) -> bool {
    #[cfg(feature = "cubecl-backend")]
    {
        use burn::backend::DispatchDevice;
        matches!(device.clone().inner().as_dispatch(), DispatchDevice::Cube(_))
    }
    #[cfg(not(feature = "cubecl-backend"))]
    {
        let _ = device;
        false
    }
}
