//! The state of an optimizer that steps pieces of parameters: made whole for a checkpoint, and cut again from one.
//!
//! Tensors of the state are of the form of the parameter that they are for (moments); numbers (step counters) are the
//! same on all replicas.

use super::exchange::{Group, Tensors};
use super::pieces::{cut, length};
use super::shard::ranked;
use crate::link::{Link, LinkError};
use crate::plan::StageId;
use crate::stage::{AnyTensor, ErasedStage, ParameterState, StateValue};
use burn::module::ParamId;
use std::collections::HashMap;
use std::time::Instant;

impl Group {
    /// An optimizer's state with whole tensors. All replicas call it.
    ///
    /// # Errors
    /// If a tensor of the state is not of the form of its parameter.
    pub(crate) fn gather_optimizer_states(
        &mut self,
        link: &mut dyn Link,
        stage: StageId,
        states: &mut HashMap<ParamId, ParameterState>,
        like: &dyn ErasedStage,
        deadline: Instant,
    ) -> Result<Result<(), String>, LinkError> {
        let Some(device) = like.weights().first().map(|(_, weight)| weight.device()) else { return Ok(Ok(())) };
        let parameters = self.parameters_of(stage).to_vec();
        let mut fields: Vec<String> = states
            .values()
            .flat_map(|state| state.iter())
            .filter(|(_, value)| matches!(value, StateValue::Tensor(_)))
            .map(|(field, _)| field.clone())
            .collect();
        fields.sort_unstable();
        fields.dedup();
        for field in fields {
            let mut own = Tensors::new();
            for parameter in &parameters {
                own.push(match states.get(&parameter.id).and_then(|state| state.get(&field)) {
                    Some(StateValue::Tensor(data)) => {
                        let expected = length(parameter.shape.iter().product(), self.grid.replicas());
                        if data.num_elements() != expected || data.dtype() != parameter.dtype {
                            return Ok(Err(format!("`{field}` has not the form of the parameter that it is for")));
                        }
                        Some(AnyTensor::from_data_exact(data.clone(), &device))
                    }
                    _ => None,
                });
            }
            let whole = self.whole(link, stage, own, deadline)?;
            for (parameter, tensor) in parameters.iter().zip(whole) {
                let (Some(tensor), Some(state)) = (tensor, states.get_mut(&parameter.id)) else { continue };
                match tensor.into_data() {
                    Ok(data) => drop(state.insert(field.clone(), StateValue::Tensor(data))),
                    Err(message) => return Ok(Err(message)),
                }
            }
        }
        Ok(Ok(()))
    }

    /// This replica's pieces of an optimizer's state.
    ///
    /// # Errors
    /// What a device reports.
    pub(crate) fn pieces_of_states(
        &self,
        stage: StageId,
        states: &mut HashMap<ParamId, ParameterState>,
        like: &dyn ErasedStage,
    ) -> Result<(), String> {
        let Some(device) = like.weights().first().map(|(_, weight)| weight.device()) else { return Ok(()) };
        for parameter in self.parameters_of(stage) {
            let Some(state) = states.get_mut(&parameter.id) else { continue };
            for value in state.values_mut() {
                let StateValue::Tensor(data) = value else { continue };
                if data.shape().to_vec() != parameter.shape {
                    continue;
                }
                let whole = AnyTensor::from_data_exact(data.clone(), &device);
                let piece = cut(whole, self.grid.replicas()).swap_remove(self.grid.replica());
                *data = ranked(piece, parameter).into_data()?;
            }
        }
        Ok(())
    }
}
