//! A rank's part in a collective of a group: first the memory, then the launch.

use super::command::{Collect, OWN};
use super::error::{NcclError, PeerError, with};
use super::gpu::Event;
use super::launch::{Landing, Ready};
use super::progress::Progress;
use super::tensors::{Pinned, empty};
use crate::host::pairing::Action;
use crate::host::sums::{self, Refusal};
use burn_cubecl::tensor::CubeTensor;
use burn_pipeline::link::{FlatCollective, LinkError};

impl Progress {
    /// Allocates the memory for a collective, then declares this rank ready. If a member has left, the collective
    /// ends here.
    pub(super) fn ready_for(&mut self, collect: Collect) -> Result<Vec<Action>, PeerError> {
        if let Some(left) = collect.members.iter().copied().find(|&member| self.pairing.has_left(member)) {
            self.end_without(collect, left);
            return Ok(Vec::new());
        }
        let spec =
            |tensor: &Option<CubeTensor>| tensor.as_ref().map(|tensor| (tensor.dtype, tensor.meta.shape().to_vec()));
        let part = sums::write(&collect.what, &collect.tensors.iter().map(spec).collect::<Vec<_>>());
        let (group, round, members) = (collect.group, collect.round, collect.members.clone());
        let ready = self.make_ready(&collect).map_err(with(self.other(&members)))?;
        self.collects.push((collect, ready));
        Ok(self.pairing.ready(group, round, &members, part))
    }

    /// Launches a collective that all members have agreed on, or refuses it on all of them.
    pub(super) fn start(&mut self, group: u32, round: u64, parts: &[u8]) -> Result<(), PeerError> {
        let place = self.collects.iter().position(|(collect, _)| (collect.group, collect.round) == (group, round));
        let Some(place) = place else { return Ok(()) };
        let (collect, ready) = self.collects.remove(place);
        let (rank, peer) = (self.mesh.mailbox.rank, self.other(&collect.members));
        match sums::joined(parts) {
            Ok(specs) => self.collect(collect, ready, specs, peer).map_err(with(peer)),
            Err(refusal) => {
                // All members get this error, and none launches.
                let _ = collect.done.send(Err(refused(refusal, &collect, rank, peer)));
                self.mesh.mailbox.wake();
                Ok(())
            }
        }
    }

    /// Ends a collective that is not launched because a member has left.
    pub(super) fn end_without(&self, collect: Collect, left: usize) {
        let (rank, what) = (self.mesh.mailbox.rank, "its part of a collective".to_owned());
        // This fails if the caller has given up.
        let _ = collect.done.send(Err(LinkError::Left { rank, peer: left, what }));
        self.mesh.mailbox.wake();
    }

    /// Another member, for errors.
    fn other(&self, members: &[usize]) -> usize {
        let me = self.mesh.mailbox.rank;
        members.iter().copied().find(|&member| member != me).unwrap_or(me)
    }

    /// Allocates memory for a collective's results, for the tensors that this rank has.
    fn make_ready(&self, collect: &Collect) -> Result<Vec<Option<Ready>>, NcclError> {
        let ready = |tensor: &Option<CubeTensor>| tensor.clone().map(|tensor| self.ready(collect, tensor)).transpose();
        let ready = collect.tensors.iter().map(ready).collect::<Result<Vec<_>, _>>()?;
        self.order.before_offer()?;
        Ok(ready)
    }

    fn ready(&self, collect: &Collect, tensor: CubeTensor) -> Result<Ready, NcclError> {
        let (shape, members) = (tensor.meta.shape(), collect.members.len());
        let shape = match collect.collective {
            FlatCollective::AllGather => vec![shape.num_elements() * members],
            FlatCollective::ReduceScatter => vec![shape.num_elements() / members],
            _ => shape.to_vec(),
        };
        let to = Pinned::new(empty(&self.cube, tensor.dtype, &shape))?;
        Ok(Ready { from: Pinned::new(tensor)?, to })
    }

    /// Launches a collective. It reads the given tensors and writes new ones.
    fn collect(
        &mut self,
        collect: Collect,
        ready: Vec<Option<Ready>>,
        specs: Vec<sums::Spec>,
        peer: usize,
    ) -> Result<(), NcclError> {
        let (group, members, what) = (collect.group, collect.members.len(), collect.collective);
        let (mut pairs, mut lacked) = (Vec::new(), Vec::new());
        let held: Vec<bool> = specs.iter().map(Option::is_some).collect();
        for (ready, spec) in ready.into_iter().zip(specs) {
            let Some((dtype, shape)) = spec else { continue };
            let Ready { from, to } = match ready {
                Some(ready) => ready,
                // This rank lacks the tensor; only the others know its shape.
                None => {
                    lacked.push(pairs.len());
                    self.ready(&collect, empty(&self.cube, dtype, &shape))?
                }
            };
            pairs.push((dtype, from, to));
        }
        if !lacked.is_empty() {
            // Earlier queued kernels may still use that memory.
            self.order.before_offer()?;
        }
        self.order.before_group(&self.stream)?;
        let of_list = || self.groups.get(group as usize).and_then(Option::as_ref);
        let communicator = if group == OWN { self.own.as_ref() } else { of_list() };
        let communicator = communicator.ok_or(NcclError::Stopped {
            what: "a collective",
            reason: format!("group {group} was not formed, or this rank is not in it"),
        })?;
        let event = Event::new(&self.order.gpu)?;
        // Cleared by the queue itself: a kernel would be compiled while other ranks wait in their queues.
        // SAFETY: `fly` keeps all memory until the event after the collective has completed, whatever fails. Memory
        // that is read is pinned against writes, and memory that is written was allocated for this and is released
        // after the event. The group has these members.
        let queued = unsafe {
            let cleared = lacked.into_iter().try_for_each(|place| self.stream.clear(&pairs[place].1));
            cleared.and_then(|()| communicator.collect(what, members, &self.stream, &pairs))
        };
        let queued = queued.and_then(|()| self.settle(true));
        let (mut read, mut sums, mut written) = (Vec::new(), Vec::new(), pairs.into_iter());
        for there in held {
            let pair = if there { written.next() } else { None };
            sums.push(pair.map(|(_, from, to)| {
                read.push(from);
                to
            }));
        }
        self.fly(queued, event, peer, read, Landing::Sums(sums, collect.done))
    }
}

/// The error of a collective that is not launched.
fn refused(refusal: Refusal, collect: &Collect, rank: usize, peer: usize) -> LinkError {
    match refusal {
        Refusal::Lists(reason) => LinkError::Lists { rank, peer, reason },
        Refusal::Elsewhere(places) => {
            let ours = collect.what.clone();
            let other = collect.members.iter().zip(places).find(|(_, place)| *place != ours);
            let (peer, theirs) = other.map_or((peer, ours.clone()), |(&peer, place)| (peer, place));
            LinkError::Members { rank, peer, ours, theirs }
        }
    }
}
