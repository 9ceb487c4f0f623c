//! What a rank's device could not make, for lack of memory or since it is lost, becomes an error that says where.
//!
//! A CubeCL device tells only who asks (`stage/boundary/unwritten.rs`), and a question makes the rank wait for the device's thread on the host.
//! So the rank asks where it waits anyway, or where an answer is likely:
//!
//! 1. In the first rows every compute task is asked for what it made and added to: memory that is lacking is lacking
//!    there, as a rule, and these rows compile kernels anyway. Not where operations are fused, which a question would part.
//! 2. Before ranks wait for each other's losses, the rank asks for its losses, outputs and sums of gradients, once for all. Failures are
//!    passed on from tensor to tensor, so this finds all that reach a result; only their microbatch is then not known, and another rank
//!    that they have reached may ask first.
//! 3. After the optimizer's step it asks for the weights.
//! 4. Whatever error ends a row, the device is asked whether it is lost.

use super::error::ExecuteError;
use super::executor::Executor;
use super::run_state::RunState;
use crate::plan::{MicrobatchTask, Op, StageId};
use crate::stage::{AnyTensor, StageError, Unwritten, is_cubecl, lost, written};

/// Where something was missing.
#[derive(Clone, Copy)]
enum Place {
    Task(MicrobatchTask),
    Row(StageId),
    Optimizer(StageId, u64),
}

impl Executor {
    /// Asks for what a task has made, in the first rows.
    pub(super) fn refuse_unwritten<'a>(
        &mut self,
        task: MicrobatchTask,
        made: impl Iterator<Item = &'a AnyTensor>,
    ) -> Result<(), ExecuteError> {
        if self.watched_rows == 0 || cfg!(feature = "fusion") || !is_cubecl(&self.device) {
            return Ok(());
        }
        let mut made: Vec<&AnyTensor> = made.collect();
        if let Some(held) = self.stages.get_mut(&task.stage()).filter(|_| task.op() != Op::Forward) {
            made.extend(held.gradients().tensors());
        }
        written(made.into_iter()).map_err(|why| self.unwritten(Place::Task(task), why))
    }

    /// Asks for all that the row has made.
    pub(super) fn refuse_unwritten_row(&mut self, state: &RunState<'_>) -> Result<(), ExecuteError> {
        self.watched_rows = self.watched_rows.saturating_sub(1);
        if !is_cubecl(&self.device) {
            return Ok(());
        }
        let sums = self.stages.values_mut().flat_map(|held| held.gradients().tensors());
        let losses = state.losses.values().flat_map(|(_, part)| part.tensors());
        let outputs = state.outcome.outputs.iter().flat_map(|(_, output)| output.tensors());
        let Err(why) = written(sums.chain(losses).chain(outputs)) else { return Ok(()) };
        for (task, part) in state.losses.values() {
            written(part.tensors()).map_err(|why| self.unwritten(Place::Task(*task), why))?;
        }
        // Where no sum is, an output is, which the last stage gave.
        let mut odd = self.stages.keys().next_back().copied().unwrap_or(StageId::new(0));
        for (&stage, held) in self.stages.iter_mut() {
            if written(held.gradients().tensors()).is_err() {
                odd = stage;
                break;
            }
        }
        Err(self.unwritten(Place::Row(odd), why))
    }

    /// Asks for the weights that the optimizers of step `step` have made.
    pub(crate) fn refuse_unwritten_weights(&mut self, step: u64) -> Result<(), ExecuteError> {
        if !is_cubecl(&self.device) {
            return Ok(());
        }
        let weights: Vec<_> = self
            .stages
            .iter()
            .map(|(&stage, held)| (stage, held.weights().into_iter().map(|(_, weight)| weight).collect::<Vec<_>>()))
            .collect();
        let Err(why) = written(weights.iter().flat_map(|(_, weights)| weights)) else { return Ok(()) };
        let odd = weights.iter().find(|(_, weights)| written(weights.iter()).is_err());
        let stage = odd.map_or(StageId::new(0), |(stage, _)| *stage);
        Err(self.unwritten(Place::Optimizer(stage, step), why))
    }

    /// The error, or that the device is lost, if it is: then everything fails there, each thing in its own way.
    pub(crate) fn blame_device(&self, error: ExecuteError) -> ExecuteError {
        let known = matches!(error.cause(), ExecuteError::DeviceLost { .. } | ExecuteError::Memory { .. });
        let own = !error.is_secondary() && !known;
        match own.then(|| lost(&self.device)).flatten() {
            Some(message) => self.device_lost(message),
            None => error,
        }
    }

    fn unwritten(&self, place: Place, why: Unwritten) -> ExecuteError {
        let rank = self.rank();
        match (why, place) {
            (Unwritten::Lost(message), _) => self.device_lost(message),
            (Unwritten::Memory(message), place) => {
                let (stage, microbatch, op, step) = match place {
                    Place::Task(task) => (task.stage(), Some(task.microbatch()), Some(task.op()), None),
                    Place::Row(stage) => (stage, None, None, None),
                    Place::Optimizer(stage, step) => (stage, None, None, Some(step)),
                };
                // Boxed, as errors are returned everywhere and this is the largest one.
                let (device, message) = (self.device_name().into(), message.into());
                let predicted = self.options.predicted;
                ExecuteError::Memory { rank, stage, microbatch, op, step, device, message, predicted }
            }
            (Unwritten::Failed(message), Place::Task(task)) => self.stage_error(task, StageError::Device(message)),
            (Unwritten::Failed(message), Place::Row(stage)) => {
                ExecuteError::Device { rank, message: format!("stage {stage}, in one of the microbatches: {message}") }
            }
            (Unwritten::Failed(message), Place::Optimizer(stage, step)) => ExecuteError::Device {
                rank,
                message: format!("stage {stage}, stepping weights in step {step}: {message}"),
            },
        }
    }

    fn device_lost(&self, message: String) -> ExecuteError {
        ExecuteError::DeviceLost { rank: self.rank(), device: self.device_name(), message }
    }

    fn device_name(&self) -> String {
        format!("{:?}", self.device.clone().inner())
    }
}
