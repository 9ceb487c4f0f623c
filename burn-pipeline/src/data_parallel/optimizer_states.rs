//! The state of an optimizer that steps pieces of parameters: gathered for a checkpoint, and cut again when it is
//! loaded.
//!
//! Tensors of the state (moments) have their parameter's shape. Numbers (step counters) are the same on all
//! replicas.

use super::pieces::cut;
use super::replica_group::ReplicaGroup;
use crate::link::LinkError;
use crate::payload::AnyTensor;
use crate::ranks::TensorList;
use crate::stage::{ErasedStage, ParameterState, StateValue};
use crate::tensor_parallel::tensors_like;
use burn::module::ParamId;
use burn_pipeline_plan::plan::StageId;
use std::collections::{BTreeSet, HashMap};

impl ReplicaGroup {
    /// Replaces the pieces in an optimizer's state by whole tensors. All replicas call it.
    ///
    /// # Errors
    /// Returns the inner error if a tensor of the state differs from its parameter in shape or element type, or the
    /// device fails.
    pub(crate) fn gather_optimizer_states(
        &mut self,
        stage: StageId,
        states: &mut HashMap<ParamId, ParameterState>,
        like: &dyn ErasedStage,
    ) -> Result<Result<(), String>, LinkError> {
        let Some(device) = like.weights().first().map(|(_, weight)| weight.device()) else { return Ok(Ok(())) };
        let parameters = self.parameters_of(stage).to_vec();
        let values = states.values().flatten();
        let tensors = values.filter(|(_, value)| matches!(value, StateValue::Tensor(_)));
        // Every replica gathers the same fields in the same order: the names are sorted, and an optimizer's state
        // has the same fields on all replicas.
        let fields: BTreeSet<String> = tensors.map(|(field, _)| field.clone()).collect();
        for field in fields {
            let mut own = TensorList::new();
            for parameter in &parameters {
                own.push(match states.get(&parameter.id).and_then(|state| state.get(&field)) {
                    Some(StateValue::Tensor(data)) => {
                        let expected = parameter.piece_length(self.set.size());
                        if data.num_elements() != expected || data.dtype() != parameter.dtype {
                            return Ok(Err(format!("`{field}` differs from its parameter in shape or element type")));
                        }
                        Some(AnyTensor::from_data(data.clone(), &device))
                    }
                    _ => None,
                });
            }
            let whole = self.gather_pieces(stage, own)?;
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

    /// Cuts an optimizer's whole state to this replica's pieces.
    pub(crate) fn cut_optimizer_states(
        &self,
        stage: StageId,
        states: &mut HashMap<ParamId, ParameterState>,
        like: &dyn ErasedStage,
    ) -> Result<(), String> {
        let Some(device) = like.weights().first().map(|(_, weight)| weight.device()) else { return Ok(()) };
        for parameter in self.parameters_of(stage) {
            let Some(state) = states.get_mut(&parameter.id) else { continue };
            for data in tensors_like(state, &parameter.shape) {
                let whole = AnyTensor::from_data(data.clone(), &device);
                let piece = cut(whole, self.set.size()).swap_remove(self.set.place());
                *data = parameter.in_rank(piece).into_data()?;
            }
        }
        Ok(())
    }
}
