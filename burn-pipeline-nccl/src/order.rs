//! How computing and transfers keep their order, though CubeCL shows nobody its queues.
//!
//! A transfer must start after what makes its tensor, and what uses a tensor after the transfer that brings it. CubeCL
//! makes the queue of a thread that asks for a tensor's memory wait for the queue that made it; from there on:
//!
//! - On the host: wait until that thread's queue is empty, then transfer; hand a tensor out when an event behind its
//!   transfer is over.
//! - Over the context: mark all that was given to the GPU, make our queue wait for the mark; before a tensor is used, make
//!   all that is given to the GPU from then on wait for an event behind its transfer. Nobody waits on the host.
//!
//! Marks over the context also catch earlier transfers, so transfers keep one order: they have one anyhow.

use crate::error::NcclError;
use crate::gpu::{Event, Gpu, Stream};
use burn::tensor::Device;
use std::sync::Arc;

/// How the order between computing and transfers is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ordering {
    /// The thread that serves the link waits for the GPU before it sends, and for a transfer before it hands the tensor
    /// out. Certain with any driver; transfers still run beside what ranks compute.
    #[default]
    Host,
    /// Events over the whole CUDA context (CUDA 12.5 or newer). Nothing waits on the host.
    Context,
    /// None, so that results are wrong: what tests check their own sharpness with.
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
    /// Before tensors are offered: this thread has just asked for their memory.
    pub(crate) fn before_offer(&self) -> Result<(), NcclError> {
        if self.ordering == Ordering::Host { self.wait_for_this_thread() } else { Ok(()) }
    }

    /// Before a group is queued: this thread has just asked for the memory that it writes.
    pub(crate) fn before_group(&self, stream: &Stream, writes: bool) -> Result<(), NcclError> {
        match self.ordering {
            Ordering::Host if writes => self.wait_for_this_thread(),
            Ordering::Context => {
                let mark = Event::new(&self.gpu)?;
                self.gpu.mark_all(&mark)?;
                stream.wait(&mark)
            }
            Ordering::Host | Ordering::Unchecked => Ok(()),
        }
    }

    /// May tensors be handed out before the event behind their transfer is over?
    pub(crate) fn hands_out_early(&self) -> bool {
        self.ordering != Ordering::Host
    }

    /// On the thread that is about to use what a group brought.
    pub(crate) fn before_use(&self, after: Option<&Arc<Event>>) -> Result<(), NcclError> {
        match (self.ordering, after) {
            (Ordering::Context, Some(event)) => {
                self.gpu.bind()?;
                self.gpu.await_before_all(event)
            }
            _ => Ok(()),
        }
    }

    /// Until what this thread has asked for is done, and what that waits for.
    pub(crate) fn wait_for_this_thread(&self) -> Result<(), NcclError> {
        let synced = self.device.sync();
        synced.map_err(|error| NcclError::Driver { what: "waiting for the GPU", error: error.to_string() })
    }
}
