//! Tensors that a CubeCL device did not write, because it is out of memory or lost.
//!
//! CubeCL does not report a failure at once. A buffer that could not be allocated carries the failure; a kernel that
//! would read it is skipped, and its outputs carry the failure on. A read reports it. So does [`written`], without a
//! read: it waits until the device's thread on the host has accepted all earlier requests, but not for the device
//! itself.

use super::any_tensor::{AnyTensor, is_cubecl};
use crate::panics::quietly;
use burn::tensor::{Device, TensorData};

/// Why tensors were not written.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(not(feature = "cubecl-backend"), allow(dead_code, reason = "other devices write at once"))]
pub(crate) enum Unwritten {
    /// The device was out of memory for them, or for what they are computed from.
    Memory(String),
    /// The device is lost: nothing on it can be read any more.
    Lost(String),
    /// Another failure, such as a kernel's.
    Failed(String),
}

/// Checks that these tensors were written, as far as the device knows by now. Always succeeds on other kinds of
/// devices.
pub(crate) fn written<'a>(tensors: impl Iterator<Item = &'a AnyTensor>) -> Result<(), Unwritten> {
    #[cfg(feature = "cubecl-backend")]
    return cube::written(tensors);
    #[cfg(not(feature = "cubecl-backend"))]
    {
        let _ = tensors;
        Ok(())
    }
}

/// Returns the message of a CubeCL device if it is lost: it cannot be waited for, or does not return what it was
/// given. Waits for the device, so it is meant for use after a failure.
pub(crate) fn lost(device: &Device) -> Option<String> {
    if !is_cubecl(device) {
        return None;
    }
    let device = device.clone().inner();
    let answers = || {
        device.sync().map_err(|error| error.to_string())?;
        AnyTensor::from_data(TensorData::from([1.0_f32]), &device).to_data().map(drop)
    };
    // The thread of a lost device may panic.
    quietly(answers).and_then(|answered| answered).err().map(|message| first_line(&message))
}

/// The cause in one line, without the trace after it.
pub(super) fn first_line(message: &str) -> String {
    let causes = ["The device is poisoned", "Caused by:"];
    let mut lines = message.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.clone().next().unwrap_or_default();
    lines.find(|line| !causes.contains(line)).unwrap_or(first).to_owned()
}

#[cfg(feature = "cubecl-backend")]
pub(super) mod cube {
    use super::{AnyTensor, Unwritten, first_line};
    use burn::backend::{BackendTensor, Cube, DispatchKindConversion, DispatchTensor};
    use burn_cubecl::cubecl::server::{IoError, LaunchError, ServerError};
    use burn_cubecl::tensor::CubeTensor;

    pub(super) fn written<'a>(tensors: impl Iterator<Item = &'a AnyTensor>) -> Result<(), Unwritten> {
        let on_cubecl = tensors.filter(|tensor| tensor.is_on_cubecl());
        let mut left: Vec<CubeTensor> = on_cubecl.cloned().filter_map(cube_tensor).collect();
        while let Some(device) = left.first().map(|tensor| tensor.device.clone()) {
            let (here, elsewhere): (Vec<_>, Vec<_>) = left.into_iter().partition(|tensor| tensor.device == device);
            if let Some(first) = here.first() {
                first.client.check(here.iter().map(|tensor| &tensor.handle)).map_err(|error| unwritten(&error))?;
            }
            left = elsewhere;
        }
        Ok(())
    }

    /// Converts to CubeCL's own tensor; `None` on other devices, or if it is quantised. With fusion, operations queued
    /// for it run first.
    pub fn cube_tensor(tensor: AnyTensor) -> Option<CubeTensor> {
        let tensor = tensor.inner().into_dispatch();
        match <DispatchTensor as DispatchKindConversion<Cube>>::try_into_backend(tensor).ok()? {
            #[cfg(feature = "fusion")]
            BackendTensor::Float(tensor) => {
                Some(tensor.client.clone().resolve_tensor_float::<burn_cubecl::CubeBackend>(tensor))
            }
            #[cfg(feature = "fusion")]
            BackendTensor::Int(tensor) => {
                Some(tensor.client.clone().resolve_tensor_int::<burn_cubecl::CubeBackend>(tensor))
            }
            #[cfg(feature = "fusion")]
            BackendTensor::Bool(tensor) => {
                Some(tensor.client.clone().resolve_tensor_bool::<burn_cubecl::CubeBackend>(tensor))
            }
            #[cfg(not(feature = "fusion"))]
            BackendTensor::Float(tensor) | BackendTensor::Int(tensor) | BackendTensor::Bool(tensor) => plain(tensor),
            _ => None,
        }
    }

    /// `None` if only Burn's own `fusion` feature is on, not this crate's: tensors then have another type.
    #[cfg(not(feature = "fusion"))]
    fn plain<T: 'static>(tensor: T) -> Option<CubeTensor> {
        (Box::new(tensor) as Box<dyn std::any::Any>).downcast().ok().map(|tensor| *tensor)
    }

    fn unwritten(error: &ServerError) -> Unwritten {
        let roots = roots(error);
        let message = |root: &ServerError| match root {
            // Their own texts are one line, after a note on where the failure was noticed.
            ServerError::Io(error) => first_line(&error.to_string()),
            root => first_line(&root.to_string()),
        };
        if error.is_device_poisoned() {
            return Unwritten::Lost(first_line(&error.to_string()));
        }
        match roots.iter().find(|root| lacks_memory(root)) {
            Some(root) => Unwritten::Memory(message(root)),
            None => Unwritten::Failed(roots.first().map_or_else(|| error.to_string(), |root| message(root))),
        }
    }

    /// The original failures behind those that were passed on.
    fn roots(error: &ServerError) -> Vec<&ServerError> {
        match error {
            ServerError::Unwritten { root, .. } => roots(root),
            ServerError::Several { errors, .. } => errors.iter().flat_map(roots).collect(),
            root => vec![root],
        }
    }

    fn lacks_memory(root: &ServerError) -> bool {
        matches!(
            root,
            ServerError::Io(
                IoError::OutOfMemory { .. } | IoError::BufferTooBig { .. } | IoError::PageSizesExhausted { .. }
            ) | ServerError::Launch(LaunchError::OutOfMemory { .. })
        )
    }
}
