//! Losses of a rank's run: what backwards are seeded with, and what all ranks get to know in the end.

use super::interpreter::Executor;
use super::run_state::RunState;
use super::{ExecuteError, MicrobatchLoss};
use crate::link::{Activity, gather};
use crate::plan::MicrobatchTask;
use crate::stage::{AnyTensor, StageError};
use burn::backend::{Dispatch, ops::FloatTensorOps};
use burn::tensor::Shape;

/// A microbatch: its index, its loss, its weight, and what its loss observed.
type LossRow = (usize, f64, f64, Vec<f64>);

impl Executor {
    /// The seed of a loss: the microbatch's share, with the loss's element type.
    pub(super) fn loss_seed(
        &self,
        state: &RunState<'_>,
        task: MicrobatchTask,
        index: usize,
    ) -> Result<AnyTensor, ExecuteError> {
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
        let mut rows = Vec::new();
        for (&index, part) in &state.losses {
            let read = part.read().and_then(|loss| Ok((loss, state.weight(index, part)?)));
            let (loss, weight) = read.map_err(|message| ExecuteError::Device { rank, message })?;
            let observed = part.read_observed().map_err(|message| ExecuteError::Device { rank, message })?;
            rows.push((index, loss, weight, observed));
        }
        let deadline = self.deadline();
        let table: Vec<Vec<LossRow>> = gather(self.link.as_mut(), &rows, deadline)
            .map_err(|source| ExecuteError::Link { rank, task: None, source })?;
        let mut rows: Vec<LossRow> = table.into_iter().flatten().collect();
        rows.sort_by_key(|row| row.0);
        let split = |(index, loss, weight, observed)| (MicrobatchLoss { index, loss, weight }, observed);
        (state.outcome.losses, state.outcome.observed) = rows.into_iter().map(split).unzip();
        Ok(())
    }
}
