//! Fused operations, where a tensor goes from one thread to another.
//!
//! With `fusion`, a rank's operations wait in a queue of the rank's own until a group of them is whole (`link/hand_over.rs`). A thread
//! that reads a tensor of another queue makes Burn run all that waits there, wherever its rank has got to: the groups would be
//! others in each step, and be searched for and compiled anew. So
//!
//! 1. who gives a tensor to another thread runs what waits in its own queue first, at that place in its row in every step
//!    ([`run_waiting`]);
//! 2. who takes it takes it into its own queue once ([`AnyTensor::taken`]). Else Burn would at every use, and wait each time.
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
                // What fails is told by whoever reads the results.
                let _ = tensor.client.try_sync(|| ());
            }
        }
    }
    #[cfg(not(all(feature = "fusion", feature = "cubecl-backend")))]
    drop(tensors);
}

impl AnyTensor {
    /// The same tensor in this thread's queue.
    pub(crate) fn taken(self) -> Self {
        // Burn gives a clone the queue of the thread that clones.
        if cfg!(feature = "fusion") && self.is_on_cubecl() { Self::clone(&self) } else { self }
    }
}
