//! The order between computing and transfers, although CubeCL does not expose its queues.
//!
//! A transfer must start after the kernels that make its tensor, and kernels that use a tensor must start after the
//! transfer that brings it. When a thread gets a tensor's memory from CubeCL, that thread's queue waits for the
//! queue that made the tensor. The order between the thread's queue and the queues of transfers remains:
//!
//! - On the host: wait until the thread's queue is empty, then start the transfer. Release a received tensor when
//!   an event after its transfer has completed.
//! - On the device: count in the GPU's memory. The thread's queue writes the next number, and the transfer's queue
//!   waits for it. Before a received tensor is used, make all later work of the GPU wait for an event after its
//!   transfer. Nothing waits on the host.
//!
//! On the device, all later work includes other transfers. So a tensor is used only when all ranks have launched its
//! transfer (`host/turns.rs`).

use super::error::NcclError;
use super::gpu::{Event, Gpu, Stream};
use super::tensors::{Pinned, empty};
use burn::tensor::{DType, Device};
use burn_cubecl::CubeDevice;
use std::sync::Arc;

/// How computing and transfers are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ordering {
    /// The thread that serves the link waits for the GPU before it sends, and for a transfer before it releases the
    /// tensor. Works with every driver. Transfers still run while ranks compute.
    #[default]
    Host,
    /// The GPU waits: transfers for a value that the computing queue writes, computing for an event over the whole
    /// CUDA context (CUDA 12.5 or newer). Nothing waits on the host. A received tensor has the sent values only if
    /// the link has not failed meanwhile; its next call reports that.
    Device,
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
    /// Called when the tensors of a transfer have their memory, on the thread that got it.
    pub(crate) fn when_ready(&self) -> Result<(), NcclError> {
        if self.ordering == Ordering::Host { self.wait_for_this_thread() } else { Ok(()) }
    }

    /// Returns true if tensors may be released before the event after their transfer has completed.
    pub(crate) fn gives_out_early(&self) -> bool {
        self.ordering != Ordering::Host
    }

    /// Called on the thread that is about to use a received tensor.
    pub(crate) fn before_use(&self, after: Option<&Arc<Event>>) -> Result<(), NcclError> {
        match (self.ordering, after) {
            (Ordering::Device, Some(event)) => {
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

/// A number in the GPU's memory that one thread's queue counts up. Queues of transfers wait for it.
pub(crate) struct Counter {
    memory: Pinned,
    count: u32,
}

impl Counter {
    /// A counter at zero.
    pub(crate) fn new(cube: &CubeDevice, order: &Order) -> Result<Self, NcclError> {
        let counter = Self { memory: Pinned::new(empty(cube, DType::U32, &[1]))?, count: 0 };
        counter.memory.write(&[0; 4])?;
        // The memory must not still hold another, greater number when a queue first waits.
        order.wait_for_this_thread()?;
        Ok(counter)
    }

    /// Makes later work of a queue wait for all work that this thread has given to the GPU.
    pub(crate) fn order(&mut self, stream: &Stream) -> Result<(), NcclError> {
        // The driver compares the difference's sign, so it may wrap around.
        self.count = self.count.wrapping_add(1);
        // When this returns, the write is in the thread's queue: no call that waits for the whole GPU comes between.
        self.memory.write(&self.count.to_ne_bytes())?;
        stream.wait_for_value(&self.memory, self.count)
    }
}
