//! The end of a step: what the stage makes of its stepped weights, and whether its optimizer can step pieces of them.

use super::typed::Typed;
use crate::stage::error::StageError;
use crate::stage::module::{Stage, after_step};
use crate::stage::state::{as_leaves, steps_by_element, trained};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// What happens around an optimizer step.
pub(crate) trait UpdateStage {
    /// May [`UpdateStage::after_step`] change anything? It may until it ran once; then only if the module has one of its own.
    fn follows_rule(&self) -> bool;
    /// Gives the module what the loss observed since the step before; see [`Stage::after_step`].
    ///
    /// # Errors
    /// If it made a parameter that stages do not take; the module is lost then.
    fn after_step(&mut self, observed: &[Vec<f64>]) -> Result<(), StageError>;
    /// Does the optimizer step each element of a parameter by itself, so that it can step shards? It is tried on a few
    /// elements of each parameter, some steps long.
    fn steps_by_element(&self) -> Result<bool, StageError>;
}

impl<M: Stage> UpdateStage for Typed<M> {
    fn follows_rule(&self) -> bool {
        self.follows_rule != Some(false)
    }

    fn after_step(&mut self, observed: &[Vec<f64>]) -> Result<(), StageError> {
        if !self.follows_rule() {
            return Ok(());
        }
        let module = Self::taken(&mut self.module)?;
        let (known, kept) = (trained(&module), module.clone());
        // Unwind safety: the old module stays, and the panic goes on.
        match catch_unwind(AssertUnwindSafe(|| after_step(module, observed))) {
            Ok((module, own)) => {
                self.follows_rule = Some(own);
                self.module = as_leaves(module, &known);
                Self::present(&self.module).map(drop)
            }
            Err(panic) => {
                self.module = Ok(kept);
                resume_unwind(panic)
            }
        }
    }

    fn steps_by_element(&self) -> Result<bool, StageError> {
        match (&self.module, &self.optimizer) {
            (Ok(module), Some(optimizer)) => {
                steps_by_element(module, optimizer, &self.options.names).map_err(StageError::Device)
            }
            _ => Ok(true),
        }
    }
}
