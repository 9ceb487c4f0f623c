//! Refuses running statistics that would differ from one device's.
//!
//! Guarantees: state that a forward changes ends every batch as on one device, or the step fails. It equals one
//! device's if one copy of the stage runs all microbatches of a batch, in order. Otherwise each copy would see only
//! some of them, and checkpoint and evaluation would not agree.
//!
//! 1. If a stage has copies, or the plan runs its forwards in another order, the state is read before the batch.
//! 2. After the forwards it is read again. A change is an error that says what to do. State that does not change
//!    (frozen statistics) is always accepted.

use super::rank::Rank;
use crate::execute::ExecuteError;
use burn::tensor::TensorData;
use burn_pipeline_plan::plan::{Op, Plan, StageId};
use std::collections::BTreeMap;

/// The state that the forwards of this rank's stages can change, by stage and name.
pub(super) struct ForwardState {
    values: BTreeMap<(StageId, String), TensorData>,
    why: String,
}

impl Rank {
    /// The state before a batch, if the plan's forwards must not change it; `None` if they may.
    pub(super) fn pinned_state(&mut self, plan: &Plan) -> Result<Option<ForwardState>, ExecuteError> {
        let replicas = self.executor.grid().replicas();
        let why = match self.placement.routes() {
            _ if replicas > 1 => format!("each of {replicas} data-parallel replicas runs only some microbatches"),
            2.. => format!("{} runs each microbatch on one of two copies of the stage", plan.name()),
            _ if !self.runs_in_order(plan) => format!("{} does not run its microbatches in order", plan.name()),
            _ => return Ok(None),
        };
        Ok(Some(ForwardState { values: self.forward_state()?, why }))
    }

    /// Refuses a change of state that must not change.
    pub(super) fn refuse_changed(&mut self, before: Option<ForwardState>) -> Result<(), ExecuteError> {
        let Some(ForwardState { values, why }) = before.filter(|before| !before.values.is_empty()) else {
            return Ok(());
        };
        let (rank, after) = (self.number(), self.forward_state()?);
        let changed = values.into_iter().find(|(place, value)| after.get(place) != Some(value));
        match changed {
            Some(((stage, name), _)) => Err(ExecuteError::ForwardState { rank, stage, name, why }),
            None => Ok(()),
        }
    }

    fn forward_state(&mut self) -> Result<BTreeMap<(StageId, String), TensorData>, ExecuteError> {
        let rank = self.number();
        let mut state = BTreeMap::new();
        for (&stage, held) in self.executor.stages().iter() {
            for mut weight in held.forward_state() {
                let value = weight.value.into_data().map_err(|message| ExecuteError::Device { rank, message })?;
                state.insert((stage, weight.names.swap_remove(0)), value);
            }
        }
        Ok(state)
    }

    /// Returns true if this rank runs the microbatches of each of its stages in order.
    fn runs_in_order(&self, plan: &Plan) -> bool {
        let mut next: BTreeMap<StageId, usize> = BTreeMap::new();
        let forwards = plan.tasks(self.executor.grid().pipeline_rank()).filter(|task| task.op() == Op::Forward);
        forwards.filter_map(|task| Some((task.stage(), task.microbatch()?))).all(|(stage, microbatch)| {
            let next = next.entry(stage).or_default();
            let in_order = microbatch >= *next;
            *next = microbatch + 1;
            in_order
        })
    }
}
