//! Transfers with one rank: first the memory, then the launch of everything agreed on, as one group.

use super::communicator::Way;
use super::error::NcclError;
use super::gpu::Event;
use super::inbox::Slot;
use super::launch::Landing;
use super::progress::Progress;
use super::tensors::{Pinned, empty};
use burn_pipeline::link::kit::Frame;

impl Progress {
    /// Allocates the memory for a rank's offer.
    pub(super) fn land(&mut self, from: usize, frame: &Frame, slot: Slot) -> Result<(), NcclError> {
        let land = |(dtype, shape)| Pinned::new(empty(&self.cube, dtype, shape));
        let landings = frame.tensors().map(land).collect::<Result<Vec<_>, _>>()?;
        // Earlier queued kernels may still use that memory.
        self.order.before_offer()?;
        self.incoming[from].push_back((slot, landings));
        Ok(())
    }

    /// Launches the transfers to a rank and from it, as one group.
    pub(super) fn exchange(&mut self, peer: usize, sends: usize, receives: usize) -> Result<(), NcclError> {
        let mut transfers: Vec<(Way, Pinned)> = Vec::new();
        for tensors in self.outgoing[peer].drain(..sends) {
            transfers.extend(tensors.into_iter().map(|pinned| (Way::To(peer), pinned)));
        }
        let mut slots = Vec::new();
        for (slot, landings) in self.incoming[peer].drain(..receives) {
            slots.push((slot, landings.len()));
            transfers.extend(landings.into_iter().map(|pinned| (Way::From(peer), pinned)));
        }
        self.order.before_group(&self.stream)?;
        let event = Event::new(&self.order.gpu)?;
        // SAFETY: `fly` keeps all memory until the event after the group has completed, whatever fails. Sent memory
        // is pinned against writes, and received memory was allocated for this and is released after the event.
        let queued = unsafe { self.world.exchange(&self.stream, &transfers) }.and_then(|()| self.settle(false));
        let (held, landed): (Vec<_>, Vec<_>) = transfers.into_iter().partition(|(way, _)| matches!(way, Way::To(_)));
        let mut landed = landed.into_iter().map(|(_, pinned)| pinned);
        let slots = slots.into_iter().map(|(slot, count)| (slot, landed.by_ref().take(count).collect())).collect();
        let held = held.into_iter().map(|(_, pinned)| pinned).collect();
        self.fly(queued, event, peer, held, Landing::Slots(slots))
    }
}
