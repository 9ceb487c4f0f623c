//! Turns out of memory and device loss into errors that say where they occurred.
//!
//! A CubeCL device reports failures only when queried (`payload/unwritten.rs`), and a query makes the rank
//! wait for the device's thread on the host. So the rank queries where it waits anyway, or where a failure is
//! likely:
//!
//! 1. In the first rows every compute task checks the tensors that it made or added to: out of memory usually
//!    happens there, and these rows compile kernels anyway. This is skipped with operation fusion, which a query
//!    would interrupt.
//! 2. Before ranks wait for each other's losses, the rank checks all its losses, outputs and sums of gradients at
//!    once. Failures propagate from tensor to tensor, so this finds every failure that reaches a result. But it
//!    does not find the microbatch, and another rank that the failure has reached may report it first.
//! 3. After the optimizer's step it checks the weights.
//! 4. Where ranks are processes, a message's tensors are read before it is sent.
//! 5. After any error that ends a row, it checks whether the device is lost.

use super::error::ExecuteError;
use super::executor::Executor;
use super::run_state::RunState;
use crate::link::WireError;
use crate::payload::{AnyTensor, Unwritten, is_cubecl, lost, written};
use crate::stage::StageError;
use burn_pipeline_plan::plan::{MicrobatchTask, Op, StageId, Task};

/// Where a tensor could not be made.
#[derive(Clone, Copy)]
enum Place {
    Task(MicrobatchTask),
    Row(StageId),
    Optimizer(StageId, u64),
}

impl Executor {
    /// Checks the tensors that a task has made, in the first rows.
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

    /// Checks all tensors that the row has made.
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
        // If no sum failed, an output of the last stage did.
        let mut odd = self.stages.keys().next_back().copied().unwrap_or(StageId::new(0));
        for (&stage, held) in self.stages.iter_mut() {
            if written(held.gradients().tensors()).is_err() {
                odd = stage;
                break;
            }
        }
        Err(self.unwritten(Place::Row(odd), why))
    }

    /// Checks the weights that the optimizers of step `step` have made.
    pub(crate) fn refuse_unwritten_weights(&mut self, step: u64) -> Result<(), ExecuteError> {
        if !is_cubecl(&self.device) {
            return Ok(());
        }
        let weights: Vec<_> = self
            .stages
            .iter()
            .map(|(&stage, held)| {
                let copies = held.options().precision.is_some().then(|| held.computed());
                let weights = held.weights().into_iter().chain(copies.into_iter().flatten());
                (stage, weights.map(|(_, weight)| weight).collect::<Vec<_>>())
            })
            .collect();
        let Err(why) = written(weights.iter().flat_map(|(_, weights)| weights)) else { return Ok(()) };
        let odd = weights.iter().find(|(_, weights)| written(weights.iter()).is_err());
        let stage = odd.map_or(StageId::new(0), |(stage, _)| *stage);
        Err(self.unwritten(Place::Optimizer(stage, step), why))
    }

    /// Returns the error, or that the device is lost, since everything then fails on it in various ways.
    pub(crate) fn blame_device(&self, error: ExecuteError) -> ExecuteError {
        let known = matches!(error.cause(), ExecuteError::DeviceLost { .. } | ExecuteError::Memory { .. });
        let own = !error.is_secondary() && !known;
        match own.then(|| lost(&self.device)).flatten() {
            Some(message) => self.device_lost(message),
            None => error,
        }
    }

    /// The error of a task that could not read a tensor from the device to send it; `None` if that is not the reason.
    pub(super) fn unread(&self, task: Task, why: &WireError) -> Option<ExecuteError> {
        let why = match why {
            WireError::DeviceMemory { message } => Unwritten::Memory(message.clone()),
            WireError::Device { message } => Unwritten::Failed(message.clone()),
            _ => return None,
        };
        let place = task.of_microbatch().map_or(Place::Row(task.stage()), Place::Task);
        Some(self.unwritten(place, why))
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
                // Boxed, since errors are returned everywhere and this is the largest one.
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
