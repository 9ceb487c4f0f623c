//! A stage's parameters, buffers and optimizer state: read, replaced, and taken over from a checkpoint.

use super::typed::Typed;
use crate::payload::AnyTensor;
use crate::stage::error::StageError;
use crate::stage::module::Stage;
use crate::stage::state::{
    NamedParameter, NamedWeight, ParameterState, StageState, float_weights, forward_state, merged_weights,
    named_parameters, named_weights, optimizer_state, unshared, values, with_optimizer_state, with_weights,
};
use burn::module::ParamId;
use std::any::Any;
use std::collections::{HashMap, HashSet};

/// The weights of a stage, for checkpoints, replicas and shared parameters.
pub(crate) trait StageWeights {
    /// Float parameters by name, in visiting order; one with several paths comes once for each.
    fn named_parameters(&self) -> Vec<NamedParameter>;
    /// Returns true if a parameter is trained.
    fn trains(&self) -> bool {
        self.named_parameters().iter().any(|parameter| parameter.trainable)
    }
    /// The value of every parameter of integers or truth values, in visiting order.
    fn buffers(&self) -> Vec<(ParamId, AnyTensor)>;
    /// Replaces the value of every float parameter, in visiting order.
    fn set_weights(&mut self, weights: Vec<AnyTensor>);
    /// The value of every float parameter as forwards use it, in visiting order: without a
    /// [`Precision`](crate::stage::Precision), the weights.
    fn computed(&self) -> Vec<(ParamId, AnyTensor)>;
    /// The bytes of all float parameters: of masters, and of the copies that forwards use beside them.
    fn weight_bytes(&self) -> usize;
    /// Replaces what forwards use, in visiting order, and leaves the masters as they are.
    fn set_computed(&mut self, weights: Vec<AnyTensor>);
    /// Decides again which parameters are rounded, once the names of tied ones are known.
    fn settle_types(&mut self);
    /// Replaces the values of the parameters and buffers that have a new one, which is moved to the old one's device.
    ///
    /// # Errors
    /// Returns [`StageError`] if a value has another shape or element type than the old one; nothing was replaced
    /// then.
    fn replace(&mut self, values: &HashMap<ParamId, AnyTensor>) -> Result<(), StageError>;
    /// The frozen parameters in half precision that its rule may step, which then have masters.
    fn ruled_halves(&self) -> HashSet<ParamId>;
    /// All parameters and buffers, in visiting order. Running statistics are brought up to date, of which Burn keeps
    /// each thread's last update aside.
    fn named_weights(&self) -> Vec<NamedWeight>;
    /// The same with adapters added to the weights that they adapt, in their place.
    fn merged_weights(&self) -> Vec<NamedWeight>;
    /// What the module's forward can change (running statistics), in visiting order.
    fn forward_state(&self) -> Vec<NamedWeight>;
    fn has_optimizer(&self) -> bool;
    /// The optimizer's state, by parameter; `None` without an optimizer.
    fn optimizer_state(&self) -> Result<Option<HashMap<ParamId, ParameterState>>, StageError>;
    /// Keeps new values and optimizer state until they are adopted or declined; nothing else changes yet.
    fn offer(&mut self, state: StageState) -> Result<(), StageError>;
    /// Adopts what was offered, if anything was, and drops gradients and everything held.
    fn adopt(&mut self);
    /// Drops what was offered.
    fn decline(&mut self);
    /// A copy of the module for another thread, to be downcast to its type.
    fn module(&self) -> Box<dyn Any + Send>;
}

impl<M: Stage> StageWeights for Typed<M> {
    fn named_parameters(&self) -> Vec<NamedParameter> {
        self.whole().map(|module| named_parameters(&module, &self.options.names)).unwrap_or_default()
    }

    fn buffers(&self) -> Vec<(ParamId, AnyTensor)> {
        let all = self.module.as_ref().map(values).unwrap_or_default();
        all.into_iter().filter(|(_, value)| !value.dtype().is_float()).collect()
    }

    fn set_weights(&mut self, weights: Vec<AnyTensor>) {
        self.change(|module| {
            let ids = float_weights(&module).into_iter().map(|(id, _)| id);
            with_weights(module, &ids.zip(weights).collect())
        });
    }

    fn computed(&self) -> Vec<(ParamId, AnyTensor)> {
        self.module.as_ref().map(float_weights).unwrap_or_default()
    }

    fn weight_bytes(&self) -> usize {
        let bytes = |(id, copy): (ParamId, AnyTensor)| copy.bytes() + self.masters.bytes_of(id);
        self.computed().into_iter().map(bytes).sum()
    }

    fn settle_types(&mut self) {
        let module = Self::taken(&mut self.module).map(|module| self.masters.take(module));
        self.module = module.map(|module| self.rounded(module));
    }

    fn set_computed(&mut self, weights: Vec<AnyTensor>) {
        let ids: Vec<ParamId> = self.computed().into_iter().map(|(id, _)| id).collect();
        let values = ids.into_iter().zip(weights).collect();
        self.module = Self::taken(&mut self.module).map(|module| with_weights(module, &values));
    }

    fn replace(&mut self, values: &HashMap<ParamId, AnyTensor>) -> Result<(), StageError> {
        let mut replaced = HashMap::new();
        for NamedWeight { id, path, value: old, .. } in self.named_weights() {
            let Some(value) = values.get(&id) else { continue };
            if (value.shape(), value.dtype()) != (old.shape(), old.dtype()) {
                let spec = |tensor: &AnyTensor| format!("{:?} of {:?}", tensor.shape(), tensor.dtype());
                return Err(StageError::Replaced { path, got: spec(value), expected: spec(&old) });
            }
            replaced.insert(id, value.clone().inner().to_device(&old.device()).unshared());
        }
        self.change(|module| with_weights(module, &replaced));
        Ok(())
    }

    fn ruled_halves(&self) -> HashSet<ParamId> {
        if self.follows_rule == Some(false) { HashSet::new() } else { self.masters.ruled_halves() }
    }

    fn named_weights(&self) -> Vec<NamedWeight> {
        self.whole().map(|module| named_weights(&module, &self.options.names)).unwrap_or_default()
    }

    fn merged_weights(&self) -> Vec<NamedWeight> {
        self.whole().map(|module| merged_weights(module, &self.options.names)).unwrap_or_default()
    }

    fn forward_state(&self) -> Vec<NamedWeight> {
        let Ok(module) = &self.module else { return Vec::new() };
        let ids = self.forward_state.get_or_init(|| forward_state(module));
        match ids.is_empty() {
            true => Vec::new(),
            false => self.named_weights().into_iter().filter(|weight| ids.contains(&weight.id)).collect(),
        }
    }

    fn has_optimizer(&self) -> bool {
        self.optimizer.is_some()
    }

    fn optimizer_state(&self) -> Result<Option<HashMap<ParamId, ParameterState>>, StageError> {
        self.optimizer.as_ref().map(optimizer_state).transpose().map_err(StageError::OptimizerState)
    }

    fn offer(&mut self, state: StageState) -> Result<(), StageError> {
        let optimizer = match (&self.optimizer, &state.optimizer) {
            (Some(optimizer), Some(states)) => {
                // Burn looks up a parameter's group by this name.
                let name = |weight: NamedWeight| (weight.id, self.options.names.of_parameter(weight.id, &weight.path));
                let names = self.named_weights().into_iter().map(name).collect();
                let loaded = with_optimizer_state(optimizer.clone(), states, &names);
                Some(loaded.map_err(StageError::OptimizerState)?)
            }
            _ => None,
        };
        self.offered = Some((state.weights, optimizer));
        Ok(())
    }

    fn adopt(&mut self) {
        let Some((weights, optimizer)) = self.offered.take() else { return };
        // What was loaded may have masters of other types.
        let module = Self::taken(&mut self.module).map(|module| with_weights(self.masters.take(module), &weights));
        self.module = module.map(|module| self.rounded(module));
        self.optimizer = optimizer.or(self.optimizer.take());
        self.forget();
    }

    fn decline(&mut self) {
        self.offered = None;
    }

    fn module(&self) -> Box<dyn Any + Send> {
        Box::new(self.whole().ok().as_ref().map(unshared))
    }
}
