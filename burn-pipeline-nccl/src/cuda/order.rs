//! The order between computing and transfers, although CubeCL does not expose its queues.
//!
//! A transfer must start after the kernels that make its tensor, and kernels that use a tensor must start after the
//! transfer that brings it. When a thread gets a tensor's memory from CubeCL, that thread's queue waits for the
//! queue that made the tensor. The order between the thread's queue and the queue of transfers remains:
//!
//! - On the host: wait until the thread's queue is empty, then start the transfer. Release a received tensor when
//!   an event after its transfer has completed.
//! - Over the context: record an event after all work given to the GPU so far, and make the queue of transfers wait
//!   for it. Before a received tensor is used, make all later work of the GPU wait for an event after its transfer.
//!   Nothing waits on the host.
//!
//! Events over the context also wait for earlier transfers. That costs nothing, since transfers run in one order
//! anyway.

use super::error::NcclError;
use super::gpu::{Event, Gpu, Stream};
use burn::tensor::Device;
use std::sync::Arc;

/// How computing and transfers are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ordering {
    /// The thread that serves the link waits for the GPU before it sends, and for a transfer before it releases the
    /// tensor. Works with every driver. Transfers still run while ranks compute.
    #[default]
    Host,
    /// Events over the whole CUDA context (CUDA 12.5 or newer). Nothing waits on the host. A received tensor has
    /// the sent values only if the link has not failed meanwhile; its next call reports that.
    Context,
    /// No order, so that results are wrong: tests use it to check that they would notice.
    Unchecked,
}

/// Keeps the order on one GPU.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    pub(crate) ordering: Ordering,
    pub(crate) gpu: Gpu,
    pub(crate) device: Device,
}

impl Order {
    /// Called before tensors are offered, or after memory for offered tensors was allocated on this thread.
    pub(crate) fn before_offer(&self) -> Result<(), NcclError> {
        if self.ordering == Ordering::Host { self.wait_for_this_thread() } else { Ok(()) }
    }

    /// Called before a group is queued. Nothing waits on the host here: other ranks may have launched the group
    /// already.
    pub(crate) fn before_group(&self, stream: &Stream) -> Result<(), NcclError> {
        match self.ordering {
            Ordering::Context => {
                let event = Event::new(&self.gpu)?;
                self.gpu.record_all(&event)?;
                stream.wait(&event)
            }
            Ordering::Host | Ordering::Unchecked => Ok(()),
        }
    }

    /// Returns true if tensors may be released before the event after their transfer has completed.
    pub(crate) fn gives_out_early(&self) -> bool {
        self.ordering != Ordering::Host
    }

    /// Called on the thread that is about to use a received tensor.
    pub(crate) fn before_use(&self, after: Option<&Arc<Event>>) -> Result<(), NcclError> {
        match (self.ordering, after) {
            (Ordering::Context, Some(event)) => {
                self.gpu.bind()?;
                self.gpu.wait_before_all(event)
            }
            _ => Ok(()),
        }
    }

    /// Waits for all work that this thread has given to the GPU, and for what that work waits for.
    pub(crate) fn wait_for_this_thread(&self) -> Result<(), NcclError> {
        let synced = self.device.sync();
        synced.map_err(|error| NcclError::Driver { what: "waiting for the GPU", error: error.to_string() })
    }
}
