//! The start of the thread that serves a link: it joins the other ranks.

use super::communicator::{Communicator, Id};
use super::error::{NcclError, stop_reason};
use super::gpu::Gpu;
use super::options::NcclOptions;
use super::order::{Counter, Order, Ordering};
use super::progress::Progress;
use super::tensors::{Pinned, empty};
use crate::host::sums;
use crate::host::timeout::Timeout;
use crate::host::turns::Turns;
use burn::tensor::{DType, Device};
use burn_cubecl::CubeDevice;
use burn_pipeline::link::kit::Mesh;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// The arguments of the thread.
pub(crate) struct Start {
    pub(crate) id: Id,
    pub(crate) index: usize,
    pub(crate) cube: CubeDevice,
    pub(crate) device: Device,
    pub(crate) mesh: Arc<Mesh>,
    pub(crate) options: NcclOptions,
    pub(crate) timeout: Timeout,
    pub(crate) deadline: Instant,
}

impl Start {
    /// Joins all ranks; each of them must do the same.
    pub(crate) fn run(self) -> Result<(Progress, Order), NcclError> {
        let (rank, ranks) = (self.mesh.mailbox.rank, self.mesh.mailbox.ranks);
        let gpu = Gpu::open(self.index)?;
        let world = Communicator::join(&self.id, rank, ranks, self.deadline, &|| stop_reason(&self.mesh))?;
        let order = Order { ordering: self.options.ordering, gpu, device: self.device.clone() };
        let on_device = self.options.ordering == Ordering::Device;
        let counter = on_device.then(|| Counter::new(&self.cube, &order)).transpose()?;
        let greeting = Pinned::new(empty(&self.cube, DType::F32, &[4]))?;
        order.wait_for_this_thread()?;
        let (outgoing, incoming) = (0..ranks).map(|_| Default::default()).unzip();
        let progress = Progress {
            world,
            queues: BTreeMap::new(),
            greeting,
            order: order.clone(),
            high_priority: self.options.high_priority,
            counter,
            cube: self.cube,
            turns: Turns::new(rank, ranks, order.gives_out_early(), sums::join),
            mesh: self.mesh,
            timeout: self.timeout,
            outgoing,
            incoming,
            collects: Vec::new(),
            when_launched: None,
        };
        Ok((progress, order))
    }
}
