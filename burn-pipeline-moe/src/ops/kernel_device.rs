//! Tells whether the operations are kernels on a device or composed of Burn's own, and whether kernels can compute
//! there in an element type.
//!
//! A kernel in a type that the device does not compute in gives wrong values without an error. So each operation that
//! users call checks the type first ([`computes_in`]), as a pipeline does when it builds a stage. A recording runs
//! nothing, and its pipeline checks before it runs it.

use burn::tensor::{DType, Device, Tensor};
use burn_pipeline::payload::computes_in;
use burn_pipeline::program::captured_for;

/// Returns true if a stage is being captured for a device with kernels.
pub(super) fn captured_for_kernels() -> bool {
    captured_for().is_some_and(|device| is_kernel_device(&device))
}

/// Returns true if the tensor is on a device where the operations of this module are kernels.
///
/// Also true for a stage that is captured for such a device, because its replay runs the kernels.
pub fn has_kernels<const D: usize>(tensor: &Tensor<D>) -> bool {
    if is_captured(tensor) {
        return captured_for_kernels();
    }
    is_kernel_device(&tensor.device())
}

/// Refuses to run kernels on a tensor whose element type its device does not compute in.
///
/// # Panics
/// Panics if the device does not.
pub(super) fn refuse_type<const D: usize>(tensor: &Tensor<D>) {
    let device = tensor.device();
    if !is_captured(tensor) && is_kernel_device(&device) {
        expect_computes(&device, tensor.dtype(), computes_in);
    }
}

/// # Panics
/// Panics if `asked` returns an error, that is, if the device does not compute in the type.
fn expect_computes(device: &Device, dtype: DType, asked: impl Fn(&Device, DType) -> Result<(), String>) {
    if let Err(why) = asked(device, dtype) {
        let device = device.clone().inner();
        panic!("{device:?} does not compute in {dtype:?}: {why}; cast to f32, or choose another device");
    }
}

/// Returns true if the tensor belongs to a capture.
fn is_captured<const D: usize>(tensor: &Tensor<D>) -> bool {
    use burn::backend::DispatchTensorKind;
    match tensor.clone().into_dispatch().kind {
        DispatchTensorKind::Capture(_) => true,
        DispatchTensorKind::Autodiff(inner) => matches!(*inner, DispatchTensorKind::Capture(_)),
        _ => false,
    }
}

/// Returns true if the operations of this module are kernels on this device.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use super::expect_computes;
    use burn::tensor::{DType, Device};

    /// The message of the refusal, if any.
    fn refusal(dtype: DType, asked: impl Fn(&Device, DType) -> Result<(), String>) -> Option<String> {
        let run = std::panic::AssertUnwindSafe(|| expect_computes(&Device::flex(), dtype, asked));
        std::panic::catch_unwind(run).err().map(|panic| *panic.downcast::<String>().unwrap())
    }

    #[test]
    fn kernels_are_refused_where_the_trial_of_their_type_failed_and_the_message_has_device_type_and_trial() {
        let lacks_bf16 = |_: &Device, dtype| match dtype {
            DType::BF16 => Err("tried there, `square` of 0.5 gave 3e-39 for 2.5e-1".to_owned()),
            _ => Ok(()),
        };
        let message = refusal(DType::BF16, lacks_bf16).unwrap();
        let wanted = ["Flex", "does not compute in BF16", "`square` of 0.5 gave 3e-39", "cast to f32"];
        assert!(wanted.iter().all(|wanted| message.contains(wanted)), "{message}");
        assert_eq!(refusal(DType::F32, lacks_bf16), None);
    }
}
