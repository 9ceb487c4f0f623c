//! Losses of a rank's run: what backwards are seeded with, and what all ranks get to know in the end.

use super::interpreter::Executor;
use super::pass::Pass;
use super::{ExecuteError, MicrobatchLoss};
use crate::link::Activity;
use crate::plan::Task;
use crate::stage::{AnyTensor, StageError};
use burn::backend::{Dispatch, ops::FloatTensorOps};
use burn::tensor::Shape;

impl Executor {
    /// The seed of a loss: the microbatch's share, with the loss's element type.
    pub(super) fn loss_seed(&self, pass: &Pass<'_>, task: Task, sample: usize) -> Result<AnyTensor, ExecuteError> {
        let loss = pass.losses.get(&sample).ok_or_else(|| self.stage_error(task, StageError::NotHeld))?;
        let seed = pass.run.seeding.seed(pass.run.batch, sample);
        let dispatch = loss.value.as_dispatch();
        let device = loss.value.device();
        let dtype = burn::backend::TensorMetadata::dtype(dispatch).into();
        let full = Dispatch::float_full(Shape::new([1]), seed.into(), device.as_dispatch(), dtype);
        Ok(AnyTensor::from_dispatch(full))
    }

    /// Reads this rank's losses from the device and gives every rank all of them.
    pub(super) fn gather_losses(&mut self, pass: &mut Pass<'_>) -> Result<(), ExecuteError> {
        let rank = self.rank();
        self.link.announce(Activity::Gathering);
        let mut numbers = Vec::new();
        for (&sample, part) in &pass.losses {
            let read = part.read().and_then(|loss| Ok((loss, pass.weight(sample, part)?)));
            let (loss, weight) = read.map_err(|message| ExecuteError::Device { rank, message })?;
            numbers.extend([sample as f64, loss, weight]);
        }
        let deadline = self.deadline();
        let table = self.link.all_gather(numbers, deadline);
        let table = table.map_err(|source| ExecuteError::Link { rank, task: None, source })?;
        let row = |n: &[f64]| MicrobatchLoss { sample: n[0] as usize, loss: n[1], weight: n[2] };
        pass.outcome.losses = table.iter().flat_map(|numbers| numbers.chunks_exact(3).map(row)).collect();
        pass.outcome.losses.sort_by_key(|loss| loss.sample);
        Ok(())
    }
}
