//! The order between computation and transfers. CubeCL does not expose its queues.
//!
//! A transfer must start after the kernels that make its tensor, and kernels that use a tensor must start after the transfer
//! that brings it. When a thread asks CubeCL for a tensor's memory, that thread's queue waits for the queue that made the
//! tensor. What remains is the order between the thread's queue and the queue of transfers:
//!
//! - On the host: wait until the thread's queue is empty, then start the transfer. Give a received tensor out when an event
//!   behind its transfer has completed.
//! - Over the context: record an event behind all work given to the GPU so far, and make the queue of transfers wait for
//!   it. Before a received tensor is used, make all later work of the GPU wait for an event behind its transfer. Nothing
//!   waits on the host.
//!
//! Events over the context also wait for earlier transfers. That costs nothing: transfers run in one order anyhow.

use super::error::NcclError;
use super::gpu::{Event, Gpu, Stream};
use burn::tensor::Device;
use std::sync::Arc;

/// How computation and transfers keep their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ordering {
    /// The thread that serves the link waits for the GPU before it sends, and for a transfer before it gives the tensor
    /// out. Works with every driver. Transfers still run while ranks compute.
    #[default]
    Host,
    /// Events over the whole CUDA context (CUDA 12.5 or newer). Nothing waits on the host. A tensor that was received holds
    /// what was sent only if the link has not failed meanwhile: its next call says so.
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
    /// Before tensors are offered, or memory is made for those that are: this thread has just asked for it.
    pub(crate) fn before_offer(&self) -> Result<(), NcclError> {
        if self.ordering == Ordering::Host { self.wait_for_this_thread() } else { Ok(()) }
    }

    /// Before a group is queued. Nothing waits on the host here: other ranks may have launched the group already.
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

    /// Whether tensors may be given out before the event behind their transfer has completed.
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
