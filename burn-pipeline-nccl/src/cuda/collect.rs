//! A rank's part in a collective of a group: first the memory, then the launch.

use super::command::{Answered, Collect, Results};
use super::error::{NcclError, PeerError, with};
use super::launch::{Announcement, Landing, Ready};
use super::progress::Progress;
use super::queue::Queue;
use super::tensors::{Pinned, empty};
use crate::host::sums::{self, Refusal};
use crate::host::turns::{Action, Lane};
use burn_cubecl::tensor::CubeTensor;
use burn_pipeline::link::{FlatCollective, LinkError};

impl Progress {
    /// Allocates the memory for a collective, then declares this rank ready. If a member has left, the collective
    /// ends here.
    pub(super) fn ready_for(&mut self, collect: Collect) -> Result<Vec<Action>, PeerError> {
        if let Some(left) = collect.members.iter().copied().find(|&member| self.turns.has_left(member)) {
            self.end_without(&collect, left);
            return Ok(Vec::new());
        }
        let spec =
            |tensor: &Option<CubeTensor>| tensor.as_ref().map(|tensor| (tensor.dtype, tensor.meta.shape().to_vec()));
        let part = sums::write(&collect.what, &collect.tensors.iter().map(spec).collect::<Vec<_>>());
        let (group, round, members) = (collect.group, collect.round, collect.members.clone());
        let ready = self.make_ready(&collect).map_err(with(self.other(&members)))?;
        self.collects.push((collect, ready));
        Ok(self.turns.ready(group, round, &members, part))
    }

    /// Launches a collective that all members are ready for.
    pub(super) fn start(
        &mut self,
        (group, round): (u32, u64),
        parts: &[u8],
        next: Option<Announcement>,
    ) -> Result<(), PeerError> {
        let Some((collect, ready)) = self.take(group, round) else { return Ok(()) };
        let peer = self.other(&collect.members);
        // Higher members have launched it, so nothing can be refused any more.
        let broken = |refusal| NcclError::Stopped { what: "a collective", reason: format!("{refusal:?}") };
        let specs = sums::joined(parts).map_err(broken).map_err(with(peer))?;
        self.collect(collect, ready, specs, (peer, next)).map_err(with(peer))
    }

    /// Ends a collective that no member launches: it is refused, or has no tensors.
    pub(super) fn end(&mut self, group: u32, round: u64, parts: &[u8]) {
        let Some((collect, _)) = self.take(group, round) else { return };
        let (rank, peer) = (self.mesh.mailbox.rank, self.other(&collect.members));
        let nothing = sums::joined(parts).map(|specs| (specs.iter().map(|_| None).collect(), None));
        self.answer(&collect, nothing.map_err(|refusal| refused(refusal, &collect, rank, peer)));
    }

    fn take(&mut self, group: u32, round: u64) -> Option<(Collect, Vec<Option<Ready>>)> {
        let place = self.collects.iter().position(|(collect, _)| (collect.group, collect.round) == (group, round));
        place.map(|place| self.collects.remove(place))
    }

    fn answer(&self, collect: &Collect, answer: Answered<Results>) {
        // This fails if the caller has given up.
        let _ = collect.done.send(answer);
        self.mesh.mailbox.wake();
    }

    /// Ends a collective that is not launched because a member has left.
    pub(super) fn end_without(&self, collect: &Collect, left: usize) {
        let (rank, what) = (self.mesh.mailbox.rank, "its part of a collective".to_owned());
        self.answer(collect, Err(LinkError::Left { rank, peer: left, what }));
    }

    /// Another member, for errors.
    pub(super) fn other(&self, members: &[usize]) -> usize {
        let me = self.mesh.mailbox.rank;
        members.iter().copied().find(|&member| member != me).unwrap_or(me)
    }

    /// Allocates memory for a collective's results, for the tensors that this rank has.
    fn make_ready(&self, collect: &Collect) -> Result<Vec<Option<Ready>>, NcclError> {
        let ready = |tensor: &Option<CubeTensor>| tensor.clone().map(|tensor| self.ready(collect, tensor)).transpose();
        let ready = collect.tensors.iter().map(ready).collect::<Result<Vec<_>, _>>()?;
        self.order.when_ready()?;
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
        (peer, next): (usize, Option<Announcement>),
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
            self.order.when_ready()?;
        }
        let areas: Vec<_> = pairs.iter().map(|(dtype, from, to)| (*dtype, from.area(), to.area())).collect();
        let call = |queue: &Queue| {
            let Queue { communicator, stream, .. } = queue;
            // Cleared by the queue itself: a kernel would be compiled while other ranks wait in their queues.
            // SAFETY: `launch` keeps all memory until the event after the collective has completed, whatever fails.
            // Memory that is read is pinned against writes, and memory that is written was allocated for this and is
            // released after the event. The group has these members.
            unsafe {
                let cleared = lacked.into_iter().try_for_each(|place| stream.clear(areas[place].1));
                cleared.and_then(|()| communicator.collect(what, members, stream, &areas))
            }
        };
        let (mut read, mut sums, mut written) = (Vec::new(), Vec::new(), pairs.into_iter());
        for there in held {
            let pair = if there { written.next() } else { None };
            sums.push(pair.map(|(_, from, to)| {
                read.push(from);
                to
            }));
        }
        self.launch(Lane::Set(group), (peer, next), call, read, Landing::Sums(sums, collect.done))
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
