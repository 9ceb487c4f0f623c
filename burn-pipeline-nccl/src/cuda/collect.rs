//! A rank's part in a sum over a group: memory first, then the launch.

use super::command::Collect;
use super::error::NcclError;
use super::gpu::Event;
use super::progress::{Landing, Progress, Ready};
use super::tensors::{Pinned, empty, zeros};
use crate::host::sums;
use burn_cubecl::tensor::CubeTensor;

impl Progress {
    /// Makes the memory for a sum's results, for the tensors that this rank holds.
    pub(super) fn make_ready(&self, tensors: &[Option<CubeTensor>]) -> Result<Vec<Option<Ready>>, NcclError> {
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
    pub(super) fn collect(
        &mut self,
        collect: Collect,
        ready: Vec<Option<Ready>>,
        specs: Vec<sums::Spec>,
        peer: usize,
    ) -> Result<(), NcclError> {
        let Collect { group, done, .. } = collect;
        let mut lacked = false;
        let mut pairs = Vec::new();
        let held: Vec<bool> = specs.iter().map(Option::is_some).collect();
        for (ready, spec) in ready.into_iter().zip(specs) {
            let Some((dtype, shape)) = spec else { continue };
            let Ready { from, to } = match ready {
                Some(ready) => ready,
                // Only the others know what this rank lacks.
                None => {
                    lacked = true;
                    self.ready(zeros(&self.cube, dtype, &shape))?
                }
            };
            pairs.push((dtype, from, to));
        }
        if lacked {
            // These were pinned only now: the queue that makes them must be waited for as well.
            self.order.before_offer()?;
        }
        self.order.before_group(&self.stream)?;
        let communicator = self.groups.get(group as usize).and_then(Option::as_ref);
        let communicator = communicator.ok_or(NcclError::Stopped {
            what: "a collective",
            reason: format!("group {group} was not formed, or this rank is not in it"),
        })?;
        let event = Event::new(&self.order.gpu)?;
        let queued = communicator.all_reduce(&self.stream, &pairs).and_then(|()| self.settle(true));
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
