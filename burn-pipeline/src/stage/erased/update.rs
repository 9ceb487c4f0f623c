//! The end of a step: the stage's own change of its stepped weights, and whether its optimizer can step shards.

use super::typed::Typed;
use crate::stage::error::StageError;
use crate::stage::module::{Stage, after_step};
use crate::stage::state::{as_leaves, steps_by_element, trained};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// What happens around an optimizer step.
pub(crate) trait UpdateStage {
    /// Returns true if [`UpdateStage::after_step`] may change anything: until it ran once, and then if the module has
    /// its own.
    fn follows_rule(&self) -> bool;
    /// Passes the module what the loss observed since the step before; see [`Stage::after_step`].
    ///
    /// # Errors
    /// Returns [`StageError`] if it made a parameter that stages do not support; the module is lost then.
    fn after_step(&mut self, observed: &[Vec<f64>]) -> Result<(), StageError>;
    /// Returns true if the optimizer steps each element of a parameter independently, so that it can step shards.
    /// This is tried on a few elements of each parameter, for some steps.
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
        let kept = Self::taken(&mut self.module)?;
        let module = self.masters.widened(kept.clone());
        let known = trained(&module);
        // Unwind safety: the old module stays, and the panic continues.
        match catch_unwind(AssertUnwindSafe(|| after_step(module, observed))) {
            Ok((_, false)) => {
                (self.follows_rule, self.module) = (Some(false), Ok(kept));
                Ok(())
            }
            Ok((module, true)) => {
                self.follows_rule = Some(true);
                self.module = as_leaves(module, &known).map(|module| self.rounded(module));
                Self::present(&self.module).map(drop)
            }
            Err(panic) => {
                self.module = Ok(kept);
                resume_unwind(panic)
            }
        }
    }

    fn steps_by_element(&self) -> Result<bool, StageError> {
        match (self.whole(), &self.optimizer) {
            (Ok(module), Some(optimizer)) => {
                steps_by_element(&module, optimizer, &self.options.names).map_err(StageError::Device)
            }
            _ => Ok(true),
        }
    }
}
