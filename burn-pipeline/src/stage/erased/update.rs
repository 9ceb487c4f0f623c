//! The end of a step: what the stage makes of its stepped weights, and whether its optimizer can step pieces of them.

use super::typed::Typed;
use crate::stage::error::StageError;
use crate::stage::module::Stage;
use crate::stage::state::steps_by_element;

/// What happens around an optimizer step.
pub(crate) trait UpdateStage {
    /// Gives the module what the loss observed since the step before; see [`Stage::after_step`].
    fn after_step(&mut self, observed: &[Vec<f64>]);
    /// Does the optimizer step each element of a parameter by itself, so that it can step shards? It is tried on a few
    /// elements of each parameter, two steps long.
    fn steps_by_element(&self) -> Result<bool, StageError>;
}

impl<M: Stage> UpdateStage for Typed<M> {
    fn after_step(&mut self, observed: &[Vec<f64>]) {
        self.module = self.module.take().map(|module| module.after_step(observed));
    }

    fn steps_by_element(&self) -> Result<bool, StageError> {
        match (&self.module, &self.optimizer) {
            (Some(module), Some(optimizer)) => {
                steps_by_element(module, optimizer, &self.options.names).map_err(StageError::Device)
            }
            _ => Ok(true),
        }
    }
}
