//! Losses of a rank's run: what backwards are seeded with, and what all ranks get to know in the end.

use super::interpreter::Executor;
use super::run_state::RunState;
use super::{ExecuteError, MicrobatchLoss};
use crate::link::Activity;
use crate::plan::Task;
use crate::stage::{AnyTensor, StageError};
use burn::backend::{Dispatch, ops::FloatTensorOps};
use burn::tensor::Shape;

impl Executor {
    /// The seed of a loss: the microbatch's share, with the loss's element type.
    pub(super) fn loss_seed(&self, state: &RunState<'_>, task: Task, index: usize) -> Result<AnyTensor, ExecuteError> {
        let loss = state.losses.get(&index).ok_or_else(|| self.stage_error(task, StageError::NotHeld))?;
        let seed = state.run.seeding.seed(state.run.batch, index);
        let dispatch = loss.value.as_dispatch();
        let device = loss.value.device();
        let dtype = burn::backend::TensorMetadata::dtype(dispatch).into();
        let full = Dispatch::float_full(Shape::new([1]), seed.into(), device.as_dispatch(), dtype);
        Ok(AnyTensor::from_dispatch(full))
    }

    /// Reads this rank's losses from the device and gives every rank all of them.
    pub(super) fn gather_losses(&mut self, state: &mut RunState<'_>) -> Result<(), ExecuteError> {
        let rank = self.rank();
        self.link.announce(Activity::Gathering);
        let mut numbers = Vec::new();
        for (&index, part) in &state.losses {
            let read = part.read().and_then(|loss| Ok((loss, state.weight(index, part)?)));
            let (loss, weight) = read.map_err(|message| ExecuteError::Device { rank, message })?;
            let observed = part.read_observed().map_err(|message| ExecuteError::Device { rank, message })?;
            numbers.extend([index as f64, loss, weight, observed.len() as f64]);
            numbers.extend(observed);
        }
        let deadline = self.deadline();
        let table = self.link.all_gather(numbers, deadline);
        let table = table.map_err(|source| ExecuteError::Link { rank, task: None, source })?;
        let mut rows: Vec<_> = table.iter().flat_map(|numbers| loss_rows(numbers)).collect();
        rows.sort_by_key(|(loss, _)| loss.index);
        (state.outcome.losses, state.outcome.observed) = rows.into_iter().unzip();
        Ok(())
    }
}

/// Takes `[index, loss, weight, count, count numbers]*` apart.
fn loss_rows(mut numbers: &[f64]) -> Vec<(MicrobatchLoss, Vec<f64>)> {
    let mut rows = Vec::new();
    while let [index, loss, weight, count, rest @ ..] = numbers {
        let (observed, left) = rest.split_at((*count as usize).min(rest.len()));
        rows.push((MicrobatchLoss { index: *index as usize, loss: *loss, weight: *weight }, observed.to_vec()));
        numbers = left;
    }
    rows
}
