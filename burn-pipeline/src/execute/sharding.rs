//! What a rank exchanges with data-parallel replicas of its stages outside of a row: at the start, around batches,
//! before an optimizer step, and for checkpoints. See [`data_parallel`](crate::data_parallel).
//!
//! All replicas of a stage call each of these methods, in the same order.

use super::error::ExecuteError;
use super::executor::Executor;
use crate::data_parallel::{ReplicaGroup, Stages, Values};
use crate::link::LinkError;
use crate::stage::{ParameterState, StageError, StageState};
use burn::module::ParamId;
use burn_pipeline_plan::plan::{StageId, Task};
use std::collections::HashMap;

/// An optimizer's state by parameter; `None` without an optimizer.
type OptimizerState = Option<HashMap<ParamId, ParameterState>>;

impl Executor {
    /// Keeps only this replica's pieces of parameters from now on, for stages that request it and, with `all`, for
    /// those that do not choose.
    pub(crate) fn shard(&mut self, all: bool) -> Result<(), ExecuteError> {
        let rank = self.rank();
        if self.grid().replicas() < 2 {
            return Ok(());
        }
        for (&stage, held) in &mut self.stages {
            if !held.options().sharded.unwrap_or(all) {
                continue;
            }
            let device = |message| ExecuteError::Device { rank, message };
            match held.steps_by_element().map_err(|error: StageError| device(error.to_string()))? {
                true => self.group.shard(stage, held.as_mut()).map_err(device)?,
                false => return Err(ExecuteError::NotByElement { rank, stage }),
            }
        }
        Ok(())
    }

    /// Cuts the parameters of all stages, which were just replaced by whole ones, to this replica's pieces.
    pub(crate) fn reshard_all(&mut self) -> Result<(), ExecuteError> {
        let stages: Vec<StageId> = self.stages.keys().copied().collect();
        stages.into_iter().try_for_each(|stage| self.reshard(stage))
    }

    /// Cuts the whole parameters of a stage to this replica's pieces, if it is sharded.
    pub(crate) fn reshard(&mut self, stage: StageId) -> Result<(), ExecuteError> {
        let rank = self.rank();
        let Some(held) = self.stages.get_mut(&stage).filter(|_| self.group.is_sharded(stage)) else { return Ok(()) };
        self.group.shard(stage, held.as_mut()).map_err(|message| ExecuteError::Device { rank, message })
    }

    /// Gathers the parameters of a stage, if it is sharded, to be read or replaced.
    pub(crate) fn gather_shards(&mut self, stage: StageId) -> Result<(), ExecuteError> {
        self.exchanging(None, |group, stages| {
            group.start_gather(stages, stage, Values::Stepped)?;
            group.finish_gather(stages, stage)
        })
    }

    /// Gathers the sharded parameters of all stages, to be read or replaced.
    pub(crate) fn gather_all_shards(&mut self) -> Result<(), ExecuteError> {
        self.exchanging(None, |group, stages| group.gather_all(stages, Values::Stepped))
    }

    /// Refuses sharded stages that hold more than their own pieces: an optimizer would step parameters that the
    /// next gather replaces, or whole parameters with gradients of pieces.
    pub(crate) fn refuse_gathered(&self) -> Result<(), ExecuteError> {
        let (rank, gathered) = (self.rank(), self.group.first_gathered());
        gathered.map_or(Ok(()), |stage| Err(ExecuteError::Gathered { rank, stage }))
    }

    /// Releases all gathered parameters.
    pub(crate) fn release_all(&mut self) {
        self.group.release_all(&mut self.stages);
    }

    /// Runs an exchange between replicas. An error of the link names the task.
    pub(crate) fn exchanging<T>(
        &mut self,
        task: Option<Task>,
        exchange: impl FnOnce(&mut ReplicaGroup, &mut Stages) -> Result<T, LinkError>,
    ) -> Result<T, ExecuteError> {
        exchange(&mut self.group, &mut self.stages).map_err(|source| self.link_error(task, source))
    }

    /// Updates which parameters are trained, before a batch.
    pub(crate) fn update_trained(&mut self) -> Result<(), ExecuteError> {
        let rank = self.rank();
        self.group.update_trained(&self.stages).map_err(|stage| ExecuteError::TrainedChanged { rank, stage })
    }

    /// The whole state of a stage's optimizer. The inner error is the optimizer's, and interrupts no other rank. For a
    /// sharded stage an error ends the call, since other replicas wait for this one's pieces.
    pub(crate) fn gather_optimizer_states(
        &mut self,
        stage: StageId,
    ) -> Result<Result<OptimizerState, String>, ExecuteError> {
        let rank = self.rank();
        let held = self.stages.get(&stage).ok_or(ExecuteError::NoStage { rank, stage })?;
        let state = held.optimizer_state();
        let failed = |source| ExecuteError::Module { rank, stage, source };
        if !self.group.is_sharded(stage) {
            return Ok(state.map_err(|error| error.to_string()));
        }
        let Some(mut states) = state.map_err(failed)? else { return Ok(Ok(None)) };
        let whole = self.group.gather_optimizer_states(stage, &mut states, held.as_ref());
        whole
            .map_err(|source| self.link_error(None, source))?
            .map_err(|message| failed(StageError::OptimizerState(message)))?;
        Ok(Ok(Some(states)))
    }

    /// Offers a stage its state from a checkpoint; a sharded stage's optimizer gets this replica's pieces.
    pub(crate) fn offer(&mut self, stage: StageId, mut state: StageState) -> Result<(), String> {
        let Some(held) = self.stages.get_mut(&stage) else { return Ok(()) };
        if let Some(states) = state.optimizer.as_mut().filter(|_| self.group.is_sharded(stage)) {
            self.group.cut_optimizer_states(stage, states, held.as_ref())?;
        }
        held.offer(state).map_err(|error| error.to_string())
    }
}
