//! Messages from GPU to GPU: first the memory, then the launch.

use super::communicator::Way;
use super::error::{NcclError, PeerError, with};
use super::inbox::Slot;
use super::launch::{Announcement, Landing};
use super::progress::Progress;
use super::queue::Queue;
use super::tensors::{Pinned, empty};
use crate::host::turns::{Action, Lane};
use burn_cubecl::tensor::CubeTensor;
use burn_pipeline::link::kit::Frame;

impl Progress {
    /// Sends tensors to another rank, and their frame.
    pub(super) fn send(&mut self, to: usize, frame: Vec<u8>, tensors: Vec<CubeTensor>) -> Result<(), PeerError> {
        if self.turns.has_left(to) {
            return Ok(());
        }
        let pinned = tensors.into_iter().map(Pinned::new).collect::<Result<Vec<_>, _>>().map_err(with(to))?;
        self.order.when_ready().map_err(with(to))?;
        self.outgoing[to].push_back(pinned);
        if self.turns.send(to) {
            return self.exchange(Lane::To(to), Some(Announcement::Frame(to, frame)));
        }
        self.mesh.offer(to, frame);
        Ok(())
    }

    /// Allocates the memory for a message whose frame has arrived.
    pub(super) fn arrived(&mut self, from: usize, frame: &Frame, slot: Slot) -> Result<Vec<Action>, NcclError> {
        if !self.turns.accepts(from) {
            return Ok(Vec::new());
        }
        let land = |(dtype, shape)| Pinned::new(empty(&self.cube, dtype, shape));
        let landings = frame.tensors().map(land).collect::<Result<Vec<_>, _>>()?;
        // Earlier queued kernels may still use that memory.
        self.order.when_ready()?;
        self.incoming[from].push_back((slot, landings));
        Ok(self.turns.arrived(from))
    }

    /// Launches the oldest message of a lane, and tells the other rank.
    pub(super) fn exchange(&mut self, lane: Lane, tell: Option<Announcement>) -> Result<(), PeerError> {
        self.connect(lane)?;
        let launched = match lane {
            Lane::To(to) => self.outgoing[to].pop_front().map(|tensors| (to, tensors, Landing::Nowhere)),
            Lane::From(from) => {
                let landing = |(slot, tensors)| (from, Vec::new(), Landing::Slot(slot, tensors));
                self.incoming[from].pop_front().map(landing)
            }
            Lane::Set(_) => None,
        };
        let Some((peer, held, landing)) = launched else { return Ok(()) };
        // Among two ranks, the lower one is the first.
        let other = usize::from(peer > self.mesh.mailbox.rank);
        let (way, memory) = match &landing {
            Landing::Slot(_, tensors) => (Way::From(other), tensors),
            _ => (Way::To(other), &held),
        };
        let transfers: Vec<_> = memory.iter().map(|pinned| (way, pinned.area())).collect();
        let call = |queue: &Queue| {
            // SAFETY: `launch` keeps all memory until the event after the transfers has completed, whatever fails. Sent
            // memory is pinned against writes, and received memory was allocated for this and is released after that.
            unsafe { queue.communicator.exchange(&queue.stream, &transfers) }
        };
        self.launch(lane, (peer, tell), call, held, landing).map_err(with(peer))
    }
}
