//! A rank's part in a sum over a group: memory first, then the launch.

use super::command::Collect;
use super::error::{NcclError, PeerError, with};
use super::gpu::Event;
use super::launch::{Landing, Ready};
use super::progress::Progress;
use super::tensors::{Pinned, empty};
use crate::host::pairing::Action;
use crate::host::sums;
use burn_cubecl::tensor::CubeTensor;
use burn_pipeline::link::LinkError;

impl Progress {
    /// Says that this rank is ready for a sum, once it has the memory. A sum with a member that has left ends here.
    pub(super) fn ready_for(&mut self, collect: Collect) -> Result<Vec<Action>, PeerError> {
        if let Some(left) = collect.members.iter().copied().find(|&member| self.pairing.has_left(member)) {
            self.end_without(collect, left);
            return Ok(Vec::new());
        }
        let spec =
            |tensor: &Option<CubeTensor>| tensor.as_ref().map(|tensor| (tensor.dtype, tensor.meta.shape().to_vec()));
        let part = sums::write(&collect.tensors.iter().map(spec).collect::<Vec<_>>());
        let (group, round, members) = (collect.group, collect.round, collect.members.clone());
        let ready = self.make_ready(&collect.tensors).map_err(with(self.other(&members)))?;
        self.collects.push((collect, ready));
        Ok(self.pairing.ready(group, round, &members, part))
    }

    /// Launches a sum on which all members have agreed, or refuses it on all of them.
    pub(super) fn start(&mut self, group: u32, round: u64, parts: &[u8]) -> Result<(), PeerError> {
        let place = self.collects.iter().position(|(collect, _)| (collect.group, collect.round) == (group, round));
        let Some(place) = place else { return Ok(()) };
        let (collect, ready) = self.collects.remove(place);
        let (rank, peer) = (self.mesh.mailbox.rank, self.other(&collect.members));
        match sums::joined(parts) {
            Ok(specs) => self.collect(collect, ready, specs, peer).map_err(with(peer)),
            Err(reason) => {
                // All members get this error, and none launches.
                let _ = collect.done.send(Err(LinkError::Lists { rank, peer, reason }));
                self.mesh.mailbox.wake();
                Ok(())
            }
        }
    }

    /// Ends a sum that is not launched, since a member has left.
    pub(super) fn end_without(&self, collect: Collect, left: usize) {
        let (rank, what) = (self.mesh.mailbox.rank, "its part of a collective".to_owned());
        // It fails if the caller has given up.
        let _ = collect.done.send(Err(LinkError::Left { rank, peer: left, what }));
        self.mesh.mailbox.wake();
    }

    /// Another member, for errors.
    fn other(&self, members: &[usize]) -> usize {
        let me = self.mesh.mailbox.rank;
        members.iter().copied().find(|&member| member != me).unwrap_or(me)
    }

    /// Makes the memory for a sum's results, for the tensors that this rank holds.
    fn make_ready(&self, tensors: &[Option<CubeTensor>]) -> Result<Vec<Option<Ready>>, NcclError> {
        let ready = |tensor: &Option<CubeTensor>| tensor.clone().map(|tensor| self.ready(tensor)).transpose();
        let ready = tensors.iter().map(ready).collect::<Result<Vec<_>, _>>()?;
        self.order.before_offer()?;
        Ok(ready)
    }

    fn ready(&self, tensor: CubeTensor) -> Result<Ready, NcclError> {
        let to = Pinned::new(empty(&self.cube, tensor.dtype, &tensor.meta.shape().to_vec()))?;
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
        let Collect { group, done, .. } = collect;
        let (mut pairs, mut lacked) = (Vec::new(), Vec::new());
        let held: Vec<bool> = specs.iter().map(Option::is_some).collect();
        for (ready, spec) in ready.into_iter().zip(specs) {
            let Some((dtype, shape)) = spec else { continue };
            let Ready { from, to } = match ready {
                Some(ready) => ready,
                // Only the others know what this rank lacks.
                None => {
                    lacked.push(pairs.len());
                    self.ready(empty(&self.cube, dtype, &shape))?
                }
            };
            pairs.push((dtype, from, to));
        }
        if !lacked.is_empty() {
            // Kernels that were queued before may still use that memory.
            self.order.before_offer()?;
        }
        self.order.before_group(&self.stream)?;
        let communicator = self.groups.get(group as usize).and_then(Option::as_ref);
        let communicator = communicator.ok_or(NcclError::Stopped {
            what: "a collective",
            reason: format!("group {group} was not formed, or this rank is not in it"),
        })?;
        let event = Event::new(&self.order.gpu)?;
        // By the queue itself: a kernel would be compiled while other ranks wait in theirs.
        let cleared = lacked.into_iter().try_for_each(|place| self.stream.clear(&pairs[place].1));
        let queued =
            cleared.and_then(|()| communicator.all_reduce(&self.stream, &pairs)).and_then(|()| self.settle(true));
        let (mut read, mut sums, mut written) = (Vec::new(), Vec::new(), pairs.into_iter());
        for there in held {
            let pair = if there { written.next() } else { None };
            sums.push(pair.map(|(_, from, to)| {
                read.push(from);
                to
            }));
        }
        self.fly(queued, event, peer, read, Landing::Sums(sums, done))
    }
}
