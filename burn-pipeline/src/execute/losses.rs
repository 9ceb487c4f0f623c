//! The seeds of backwards, and the table of losses that all ranks get.

use super::error::ExecuteError;
use super::executor::Executor;
use super::outcome::MicrobatchLoss;
use super::run_state::RunState;
use crate::link::{Activity, Link};
use crate::payload::AnyTensor;
use crate::stage::StageError;
use burn_pipeline_plan::plan::{MicrobatchTask, StageId};

/// A microbatch: its index, the stage that computed its loss, loss and weight, and the numbers that its loss
/// observed.
pub(super) type LossRow = (usize, StageId, f64, f64, Vec<f64>);

impl Executor {
    /// The seed of a microbatch's loss, in the loss's element type.
    pub(super) fn loss_seed(&self, state: &RunState<'_>, task: MicrobatchTask) -> Result<AnyTensor, ExecuteError> {
        let index = state.index(task);
        let (_, loss) = state.losses.get(&index).ok_or_else(|| self.stage_error(task, StageError::NotHeld))?;
        Ok(loss.seed(state.run.seeding.seed(state.run.batch, index)))
    }

    /// Reads this rank's losses from the device and gives every rank all of them. Called once, after the row, since
    /// reading a loss inside the row would make the rank wait for its device there.
    pub(super) fn gather_losses(&mut self, state: &mut RunState<'_>) -> Result<(), ExecuteError> {
        self.link.set_activity(Activity::Gathering);
        let mut rows = Vec::new();
        for (&index, (task, part)) in &state.losses {
            let read = || {
                let loss = part.read().map_err(StageError::Device)?;
                let observed = part.read_observed().map_err(StageError::Device)?;
                Ok((index, task.stage(), loss, state.weight(index, part)?, observed))
            };
            rows.push(read().map_err(|source| self.stage_error(*task, source))?);
        }
        let table: Vec<Vec<LossRow>> = self.gather(&rows)?;
        let mut rows = self.of_first_members(table)?;
        if self.grid().member() > 0 {
            // Only the first member keeps the outputs, since all members have them.
            state.outcome.outputs.clear();
        }
        rows.sort_by_key(|(_, row)| row.0);
        let split = |(rank, (index, stage, loss, weight, observed))| {
            (MicrobatchLoss { index, rank, stage, loss, weight }, observed)
        };
        (state.outcome.losses, state.outcome.observed) = rows.into_iter().map(split).unzip();
        Ok(())
    }
}
