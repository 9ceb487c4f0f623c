//! A stage of a known module type: the module, its engine, its gradient sums and its optimizer, on the rank that built
//! them. Its methods stand in the files of the traits that it implements.

use super::options::StageOptions;
use crate::stage::boundary::AnyTensor;
use crate::stage::engine::{Eager, Engine, StageFunction};
use crate::stage::error::StageError;
use crate::stage::module::Stage;
use crate::stage::state::GradientStore;
use burn::module::ParamId;
use burn::optim::ModuleOptimizer;
use std::cell::OnceCell;
use std::collections::HashMap;

/// A module and what it needs to be trained.
pub(in crate::stage) struct Typed<M: Stage> {
    /// `None` only while the optimizer or `after_step`, which take and return it, is at work.
    pub(super) module: Option<M>,
    pub(super) function: StageFunction<M>,
    pub(super) engine: Box<dyn Engine<M>>,
    pub(super) store: GradientStore,
    pub(super) optimizer: Option<ModuleOptimizer>,
    pub(super) options: StageOptions,
    /// What the module's forward can change, once it was looked for.
    pub(super) forward_state: OnceCell<Vec<ParamId>>,
    /// Weights and optimizer from a checkpoint, until every rank has found its part of it readable.
    pub(super) offered: Option<(HashMap<ParamId, AnyTensor>, Option<ModuleOptimizer>)>,
}

const MODULE_LOST: &str =
    "the optimizer or the stage's `after_step` panicked and took its module along; build the pipeline anew";

impl<M: Stage> Typed<M> {
    pub(in crate::stage) fn new(module: M, function: StageFunction<M>) -> Self {
        Self {
            module: Some(module),
            function,
            engine: Box::new(Eager::new("no other way was chosen")),
            store: GradientStore::default(),
            optimizer: None,
            options: StageOptions::default(),
            forward_state: OnceCell::new(),
            offered: None,
        }
    }

    /// The module, unless a panic took it along. It borrows the field alone, so that the engine can be borrowed beside it.
    pub(super) fn present(module: &Option<M>) -> Result<&M, StageError> {
        module.as_ref().ok_or_else(|| StageError::Unsupported(MODULE_LOST.to_owned()))
    }

    /// Drops gradients and everything held for backwards.
    pub(super) fn forget(&mut self) {
        self.engine.clear();
        self.store.clear();
    }
}
