//! A stage whose module's type is hidden: what is known about it, its engine, `F`, `I`, `W` and `B`, and its steps.

use super::replace::ReplaceModule;
use super::typed::Typed;
use super::weights::StageWeights;
use crate::payload::{AnyTensor, Boundary, Kinds, Payload};
use crate::stage::batch::LossPart;
use crate::stage::engine::{
    BackwardCall, BatchChecks, EngineState, ForwardCall, ForwardOutput, Gradients, SplitBackward, Started, refuse_given,
};
use crate::stage::error::StageError;
use crate::stage::module::{Stage, after_step};
use crate::stage::options::StageOptions;
use crate::stage::state::{
    Accumulation, GradientStore, as_leaves, collected, free_abandoned, parameter_ids, retie, step_in_model,
    steps_by_element, trained,
};
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::ParamId;
use burn::optim::ModuleOptimizer;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// A stage of any module type, as the executor uses it: payloads and gradients go in and out.
pub(crate) trait ErasedStage: ReplaceModule + StageWeights + Send {
    /// The type of its module, for messages.
    fn module_type(&self) -> &'static str;
    /// The kinds of its input and its output.
    fn kinds(&self) -> [Kinds; 2];
    /// Why its module was refused, if it was.
    fn refused(&self) -> Option<StageError>;
    /// The names of the extras that it reads.
    fn extras(&self) -> Vec<&'static str>;
    /// Checks of what it reads from a batch; the target has a check if the stage has a loss.
    fn batch_checks(&self) -> BatchChecks;
    /// The user's options for it.
    fn options(&self) -> &StageOptions;
    /// The user's options, to be changed before an engine is chosen.
    fn options_mut(&mut self) -> &mut StageOptions;

    /// Chooses the engine, before any forward. `splits` says whether the plan runs `I` and `W` on this stage,
    /// `keep_outputs` whether plain autodiff holds outputs until their backward.
    fn choose(&mut self, split: SplitBackward, splits: bool, keep_outputs: bool);
    /// Sets the order in which gradients are added, and the optimizer that steps the weights; rounds parameters, if
    /// their types are set.
    fn prepare(&mut self, accumulation: Accumulation, optimizer: Option<ModuleOptimizer>);
    /// The engine's report, and what it holds.
    fn engine(&self) -> &dyn EngineState;
    /// The engine, to be changed.
    fn engine_mut(&mut self) -> &mut dyn EngineState;

    /// Runs a forward as in training, and holds what its backward needs.
    fn forward(&mut self, call: ForwardCall) -> Result<ForwardOutput, StageError>;
    /// Runs a forward without autodiff. Returns the outputs and, if there are a loss and a target, the loss.
    fn evaluate(&self, call: ForwardCall) -> Result<(Payload, Option<LossPart>), StageError>;
    /// `B` or `I`: returns the gradients of the input. `B` adds those of the weights to the sums; `I` holds what `W`
    /// needs.
    fn backward(&mut self, call: BackwardCall) -> Result<Gradients, StageError>;
    /// `W`: adds the gradients of the weights to the sums.
    fn backward_weight(&mut self, microbatch: usize) -> Result<(), StageError>;
    /// `W` of several microbatches at once: the same sums up to the order of additions.
    fn backward_weights(&mut self, microbatches: &[usize]) -> Result<(), StageError>;
    /// Starts a forward in pieces; the engine advances and completes it.
    fn start_forward(&mut self, call: ForwardCall) -> Result<Started<ForwardOutput>, StageError>;
    /// Starts a backward in pieces; the engine advances it.
    fn start_backward(&mut self, call: BackwardCall) -> Result<Started<Gradients>, StageError>;
    /// Runs the rest of a backward that has started.
    fn complete_backward(&mut self) -> Result<Gradients, StageError>;

    /// The sums of the weights' gradients.
    fn gradients(&mut self) -> &mut GradientStore;
    /// The identifiers of its float parameters, each once, in visiting order.
    fn parameters(&self) -> Vec<ParamId>;
    /// The value of every float parameter, in visiting order, without autodiff. Running statistics may lack their last
    /// update, unlike in [`StageWeights::named_weights`].
    fn weights(&self) -> Vec<(ParamId, AnyTensor)>;
    /// Steps the weights with the gradient sums and drops the sums; without an optimizer it only drops them.
    /// Parameter groups of the learning rate and the optimizer match the model's names.
    fn optimize(&mut self, learning_rate: ModuleLearningRate);
    /// Returns true if the optimizer steps each element of a parameter independently, so that it can step shards.
    /// This is tried on a few elements of each parameter, for some steps.
    fn steps_by_element(&self) -> Result<bool, StageError>;
    /// Returns true if [`ErasedStage::after_step`] may change anything: until it ran once, and then if the module has
    /// its own.
    fn follows_rule(&self) -> bool;
    /// Passes the module what the loss observed since the step before; see [`Stage::after_step`].
    ///
    /// # Errors
    /// Returns [`StageError`] if it made a parameter that stages do not support; the module is as before it then.
    fn after_step(&mut self, observed: &[Vec<f64>]) -> Result<(), StageError>;
    /// Drops everything held and the gradients.
    fn clear(&mut self);
    /// Drops what a failed call left: everything held, and everything offered. Gradients stay.
    fn restart(&mut self);
}

impl<M: Stage> ErasedStage for Typed<M> {
    fn module_type(&self) -> &'static str {
        // The parameters of a list of layers would fill pages.
        std::any::type_name::<M>().split('<').next().unwrap_or_default()
    }

    fn kinds(&self) -> [Kinds; 2] {
        self.function.kinds.clone()
    }

    fn refused(&self) -> Option<StageError> {
        self.module.as_ref().err().cloned()
    }

    fn extras(&self) -> Vec<&'static str> {
        self.module.as_ref().map(M::extras).unwrap_or_default()
    }

    fn batch_checks(&self) -> BatchChecks {
        self.function.checks.clone()
    }

    fn options(&self) -> &StageOptions {
        &self.options
    }

    fn options_mut(&mut self) -> &mut StageOptions {
        &mut self.options
    }

    fn choose(&mut self, split: SplitBackward, splits: bool, keep_outputs: bool) {
        self.chosen = (split, splits, keep_outputs);
        self.make_engine();
    }

    fn prepare(&mut self, accumulation: Accumulation, optimizer: Option<ModuleOptimizer>) {
        self.store = GradientStore::new(accumulation, self.options.precision.is_some());
        self.optimizer = optimizer;
        self.settle_types();
    }

    fn engine(&self) -> &dyn EngineState {
        self.engine.as_ref()
    }

    fn engine_mut(&mut self) -> &mut dyn EngineState {
        self.engine.as_mut()
    }

    fn forward(&mut self, call: ForwardCall) -> Result<ForwardOutput, StageError> {
        self.engine.forward(&Self::code(&self.function, &self.module)?, call)
    }

    fn evaluate(&self, call: ForwardCall) -> Result<(Payload, Option<LossPart>), StageError> {
        let module = Self::present(&self.module)?.valid();
        let output = self.function.output(&module, call.microbatch, call.input, call.extra)?.into_payload();
        refuse_given(output.tensors())?;
        if self.function.checks.target.is_none() || call.target.is_none() {
            return Ok((output, None));
        }
        let given = M::Output::from_payload(output.clone()).map_err(StageError::Input)?;
        Ok((output, Some(self.function.loss(given, call.target)?.inner())))
    }

    fn backward(&mut self, call: BackwardCall) -> Result<Gradients, StageError> {
        self.engine.backward(&Self::code(&self.function, &self.module)?, call, &mut self.store)
    }

    fn backward_weight(&mut self, microbatch: usize) -> Result<(), StageError> {
        self.engine.backward_weight(Self::present(&self.module)?, microbatch, &mut self.store)
    }

    fn backward_weights(&mut self, microbatches: &[usize]) -> Result<(), StageError> {
        self.engine.backward_weights(Self::present(&self.module)?, microbatches, &mut self.store)
    }

    fn start_forward(&mut self, call: ForwardCall) -> Result<Started<ForwardOutput>, StageError> {
        self.engine.start_forward(&Self::code(&self.function, &self.module)?, call)
    }

    fn start_backward(&mut self, call: BackwardCall) -> Result<Started<Gradients>, StageError> {
        self.engine.start_backward(&Self::code(&self.function, &self.module)?, call, &mut self.store)
    }

    fn complete_backward(&mut self) -> Result<Gradients, StageError> {
        self.engine.complete_backward(&mut self.store)
    }

    fn gradients(&mut self) -> &mut GradientStore {
        &mut self.store
    }

    fn parameters(&self) -> Vec<ParamId> {
        self.module.as_ref().map(parameter_ids).unwrap_or_default()
    }

    fn weights(&self) -> Vec<(ParamId, AnyTensor)> {
        let value = |(id, own)| (id, self.masters.value(id, own));
        self.computed().into_iter().map(value).collect()
    }

    fn optimize(&mut self, learning_rate: ModuleLearningRate) {
        if let Some(optimizer) = &mut self.optimizer
            && let Ok(module) = Self::taken(&mut self.module)
        {
            let module = self.masters.take(module);
            let gradients = collected(&module, &mut self.store);
            // Burn's optimizers step a parameter with several paths at the first of them only.
            let names = &self.options.names;
            let (stepped, panic) = step_in_model(optimizer, learning_rate, module, gradients, names);
            self.module = Ok(self.masters.round(retie(stepped)));
            if let Some(panic) = panic {
                resume_unwind(panic);
            }
        }
        self.store.clear();
    }

    fn steps_by_element(&self) -> Result<bool, StageError> {
        match (self.whole(), &self.optimizer) {
            (Ok(module), Some(optimizer)) => {
                steps_by_element(&module, optimizer, &self.options.names).map_err(StageError::Device)
            }
            _ => Ok(true),
        }
    }

    fn follows_rule(&self) -> bool {
        self.follows_rule != Some(false)
    }

    fn after_step(&mut self, observed: &[Vec<f64>]) -> Result<(), StageError> {
        if !self.follows_rule() {
            return Ok(());
        }
        let kept = Self::taken(&mut self.module)?;
        let module = self.masters.widened(kept.clone());
        let (known, ids) = (trained(&module), parameter_ids(&module));
        let follow = || {
            let (module, has_rule) = after_step(module, observed);
            has_rule.then(|| as_leaves(module, &known))
        };
        // Unwind safety: the old module stays, and the panic continues.
        match catch_unwind(AssertUnwindSafe(follow)) {
            Ok(None) => {
                (self.follows_rule, self.module) = (Some(false), Ok(kept));
                Ok(())
            }
            Ok(Some(Ok(module))) => {
                self.follows_rule = Some(true);
                self.take_ruled(module, &ids);
                Ok(())
            }
            Ok(Some(Err(refused))) => {
                self.module = Ok(kept);
                Err(refused)
            }
            Err(panic) => {
                self.module = Ok(kept);
                resume_unwind(panic)
            }
        }
    }

    fn clear(&mut self) {
        self.forget();
    }

    fn restart(&mut self) {
        self.offered = None;
        self.withdraw_module();
        self.engine.clear();
        self.module.iter().for_each(free_abandoned);
        // A forward that panicked while it was recorded may have been mistaken for one that cannot be captured. And
        // if the ranks that hold the stage compare their recordings, some have done so in the failed call, and others
        // not.
        if self.options.members.is_some() || !self.engine.report().captured {
            self.make_engine();
        }
    }
}
