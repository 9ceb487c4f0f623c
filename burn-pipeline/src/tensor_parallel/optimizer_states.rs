//! The state of an optimizer that steps pieces of parameters: joined for a checkpoint, and cut again when it is
//! loaded.
//!
//! Guarantees: joining and cutting again changes no bit. Only one parameter's tensor is on the device at a time.
//!
//! Tensors of the state with their parameter's shape (moments) are cut like it. Everything else (step counters) is
//! equal on all ranks.

use super::holders::Holders;
use crate::payload::AnyTensor;
use crate::stage::{ParameterState, StateValue};
use burn::module::ParamId;
use burn::tensor::TensorData;
use std::collections::{HashMap, HashSet};

impl Holders<'_> {
    /// Replaces the pieces in an optimizer's state by whole tensors. All ranks call it, with the same parameters in
    /// the same order. Only ranks that keep the result copy it to the host.
    ///
    /// # Errors
    /// Returns the error of the device, once all ranks have exchanged everything.
    ///
    /// # Panics
    /// Unwinds with a [`LinkError`](crate::link::LinkError) if another rank failed.
    pub(crate) fn join_states(
        &self,
        states: &mut HashMap<ParamId, ParameterState>,
        weights: &[(ParamId, AnyTensor)],
        keeps: bool,
    ) -> Result<(), String> {
        let mut joined = Ok(());
        // A parameter at several paths is listed once for each.
        let mut seen = HashSet::new();
        for (id, weight) in weights.iter().filter(|(id, _)| self.is_cut(*id) && seen.insert(*id)) {
            let Some(state) = states.get_mut(id) else { continue };
            for data in tensors_like(state, &weight.shape().to_vec()) {
                let whole = self.whole(*id, AnyTensor::from_data(data.clone(), &weight.device()));
                if !keeps {
                    continue;
                }
                match whole.into_data() {
                    Ok(whole) => *data = whole,
                    Err(message) => joined = Err(message),
                }
            }
        }
        joined
    }

    /// Cuts a parameter's whole state to this rank's piece, given the piece of the parameter.
    pub(crate) fn cut_state(
        &self,
        parameter: ParamId,
        state: &mut ParameterState,
        own: &AnyTensor,
    ) -> Result<(), String> {
        if !self.is_cut(parameter) {
            return Ok(());
        }
        for data in tensors_like(state, &self.whole_shape(parameter, own.shape()).to_vec()) {
            let whole = AnyTensor::from_data(data.clone(), &own.device());
            *data = self.own_piece(parameter, whole).into_data()?;
        }
        Ok(())
    }
}

/// The tensors of a state with its parameter's shape (moments), in the order of their fields' names.
pub(crate) fn tensors_like<'a>(state: &'a mut ParameterState, shape: &[usize]) -> Vec<&'a mut TensorData> {
    let tensors = state.values_mut().filter_map(|value| match value {
        StateValue::Tensor(data) => Some(data),
        _ => None,
    });
    tensors.filter(|data| **data.shape() == *shape).collect()
}
