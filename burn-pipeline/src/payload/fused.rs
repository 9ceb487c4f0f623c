//! Fused operations, when a tensor goes from one thread to another.
//!
//! With `fusion`, a rank's operations wait in the rank's own queue until a group of them is complete
//! (`link/hand_over.rs`). When a thread reads a tensor of another queue, Burn runs everything that waits there,
//! however far its rank has got: the groups would differ in each step, and be searched for and compiled anew.
//! Therefore:
//!
//! 1. A thread that gives a tensor to another thread first runs what waits in its own queue, at the same place in its
//!    row in every step ([`run_waiting`]).
//! 2. The receiving thread moves the tensor into its own queue once ([`AnyTensor::taken`]). Otherwise Burn would do
//!    so at every use, and wait each time.
//!
//! Without `fusion` both do nothing.

use super::any_tensor::AnyTensor;

/// Runs the operations that wait in this thread's queues for these tensors.
pub(crate) fn run_waiting<'a>(tensors: impl Iterator<Item = &'a AnyTensor>) {
    #[cfg(all(feature = "fusion", feature = "cubecl-backend"))]
    {
        use burn::backend::{BackendTensor, Cube, DispatchKindConversion, DispatchTensor};
        let mut devices = Vec::new();
        for tensor in tensors.filter(|tensor| tensor.is_on_cubecl()) {
            let device = tensor.device();
            if devices.contains(&device) {
                continue;
            }
            devices.push(device);
            let tensor = tensor.clone().inner().into_dispatch();
            let plain = <DispatchTensor as DispatchKindConversion<Cube>>::try_into_backend(tensor);
            if let Ok(BackendTensor::Float(tensor) | BackendTensor::Int(tensor) | BackendTensor::Bool(tensor)) = plain {
                // Whoever reads the results reports the failure.
                let _ = tensor.client.try_sync(|| ());
            }
        }
    }
    #[cfg(not(all(feature = "fusion", feature = "cubecl-backend")))]
    drop(tensors);
}

impl AnyTensor {
    /// Moves the tensor to this thread's queue.
    pub(crate) fn taken(self) -> Self {
        // Burn gives a clone the queue of the cloning thread.
        if cfg!(feature = "fusion") && self.is_on_cubecl() { Self::clone(&self) } else { self }
    }
}
