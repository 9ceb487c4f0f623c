//! The start of the thread that serves a link: it joins the other ranks, and connects to its neighbours.

use super::communicator::{Communicator, Id, Way};
use super::error::NcclError;
use super::gpu::{Event, Gpu, Stream};
use super::order::{Order, Ordering};
use super::progress::Progress;
use super::tensors::{Pinned, empty};
use crate::host::pairing::Pairing;
use crate::host::sums;
use crate::host::timeout::Timeout;
use burn::tensor::{DType, Device};
use burn_cubecl::CubeDevice;
use burn_pipeline::link::Monitor;
use burn_pipeline::link::kit::Mesh;
use std::sync::Arc;
use std::time::Instant;

/// The name of the first transfers, for errors.
const FIRST: &str = "a first transfer with the neighbours";

/// The arguments of the thread.
pub(crate) struct Start {
    pub(crate) id: Id,
    pub(crate) index: usize,
    pub(crate) cube: CubeDevice,
    pub(crate) device: Device,
    pub(crate) mesh: Arc<Mesh>,
    pub(crate) ordering: Ordering,
    pub(crate) timeout: Timeout,
    pub(crate) deadline: Instant,
}

impl Start {
    /// Joins all ranks; each of them must do the same.
    pub(crate) fn run(self) -> Result<(Progress, Order), NcclError> {
        let (rank, ranks) = (self.mesh.mailbox.rank, self.mesh.mailbox.ranks);
        let gpu = Gpu::open(self.index)?;
        let stream = Stream::new(&gpu)?;
        let world = Communicator::join(&self.id, rank, ranks, self.deadline, &|| self.failure())?;
        let order = Order { ordering: self.ordering, gpu, device: self.device.clone() };
        self.greet(&world, &stream, &order)?;
        let (outgoing, incoming) = (0..ranks).map(|_| Default::default()).unzip();
        let progress = Progress {
            world,
            stream,
            order: order.clone(),
            cube: self.cube,
            pairing: Pairing::new(rank, ranks, sums::join),
            mesh: self.mesh,
            timeout: self.timeout,
            outgoing,
            incoming,
            groups: Vec::new(),
            own: None,
            collects: Vec::new(),
            flights: Default::default(),
        };
        Ok((progress, order))
    }

    fn failure(&self) -> Option<String> {
        self.mesh.failure().map(|failure| failure.message)
    }

    /// Exchanges a few bytes with both neighbours, in both directions at once: NCCL connects two ranks at their
    /// first transfer, which needs both.
    fn greet(&self, world: &Communicator, stream: &Stream, order: &Order) -> Result<(), NcclError> {
        let (rank, ranks) = (self.mesh.mailbox.rank, self.mesh.mailbox.ranks);
        let mut neighbours = vec![(rank + 1) % ranks, (rank + ranks - 1) % ranks];
        neighbours.sort_unstable();
        neighbours.dedup();
        let mut transfers = Vec::new();
        for peer in neighbours {
            for way in [Way::To(peer), Way::From(peer)] {
                transfers.push((way, Pinned::new(empty(&self.cube, DType::F32, &[4]))?));
            }
        }
        order.wait_for_this_thread()?;
        let event = Event::new(&order.gpu)?;
        // SAFETY: the memory was allocated for this, and is kept until the transfers have completed, or forever.
        let done = unsafe { world.exchange(stream, &transfers) }.and_then(|()| self.watch(world, stream, &event));
        if done.is_err() {
            // The memory may still be written to.
            std::mem::forget(transfers);
        }
        done
    }

    /// Waits until the first transfers have completed.
    fn watch(&self, world: &Communicator, stream: &Stream, event: &Event) -> Result<(), NcclError> {
        world.settle(FIRST, self.deadline, &|| self.failure())?;
        event.record(stream)?;
        while !event.is_complete()? {
            world.settle(FIRST, self.deadline, &|| self.failure())?;
            if let Some(reason) = self.failure() {
                return Err(NcclError::Stopped { what: FIRST, reason });
            }
            if Instant::now() >= self.deadline {
                return Err(NcclError::Timeout { what: FIRST });
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}
