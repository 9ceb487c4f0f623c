//! A stage whose module's type is hidden: chooses its engine, runs `F`, `I`, `W` and `B`, and steps its weights.

use super::describe::DescribeStage;
use super::interleave::InterleaveStage;
use super::replace::ReplaceModule;
use super::typed::Typed;
use super::update::UpdateStage;
use super::weights::StageWeights;
use crate::payload::{AnyTensor, Boundary, Payload};
use crate::stage::batch::LossPart;
use crate::stage::engine::{
    EngineReport, ForwardCall, ForwardOutput, Gradients, SplitBackward, StageCode, refuse_given,
};
use crate::stage::error::StageError;
use crate::stage::module::Stage;
use crate::stage::state::{
    Accumulation, GradientStore, collected, free_abandoned, parameter_ids, retie, step_in_model,
};
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::ParamId;
use burn::optim::ModuleOptimizer;
use std::panic::resume_unwind;

/// A stage of any module type, as the executor uses it: payloads and gradients go in and out.
pub(crate) trait ErasedStage:
    DescribeStage + InterleaveStage + ReplaceModule + StageWeights + UpdateStage + Send
{
    /// Chooses the engine, before any forward. `splits` says whether the plan runs `I` and `W` on this stage,
    /// `keep_outputs` whether plain autodiff holds outputs until their backward.
    fn choose(&mut self, split: SplitBackward, splits: bool, keep_outputs: bool);
    /// Sets the order in which gradients are added, and the optimizer that steps the weights; rounds parameters, if
    /// their types are set.
    fn prepare(&mut self, accumulation: Accumulation, optimizer: Option<ModuleOptimizer>);
    /// The engine, the reason for choosing it, and what it measured.
    fn report(&self) -> EngineReport;
    /// Runs a forward as in training, and holds what its backward needs.
    fn forward(&mut self, call: ForwardCall) -> Result<ForwardOutput, StageError>;
    /// Runs a forward without autodiff. Returns the outputs and, if there are a loss and a target, the loss.
    fn evaluate(&self, call: ForwardCall) -> Result<(Payload, Option<LossPart>), StageError>;
    /// `B`: returns the gradients of the input, and adds those of the weights to the sums. `seeds` holds the gradient
    /// of each output tensor, or the loss's seed.
    fn backward(&mut self, microbatch: usize, seeds: Gradients) -> Result<Gradients, StageError>;
    /// `I`: returns the gradients of the input, and holds what `W` needs.
    fn backward_input(&mut self, microbatch: usize, seeds: Gradients) -> Result<Gradients, StageError>;
    /// `W`: adds the gradients of the weights to the sums.
    fn backward_weight(&mut self, microbatch: usize) -> Result<(), StageError>;
    /// `W` of several microbatches at once: the same sums up to the order of additions.
    fn backward_weights(&mut self, microbatches: &[usize]) -> Result<(), StageError>;
    /// The sums of the weights' gradients.
    fn gradients(&mut self) -> &mut GradientStore;
    /// The identifiers of its float parameters, each once, in visiting order.
    fn parameters(&self) -> Vec<ParamId>;
    /// The value of every float parameter, in visiting order, without autodiff.
    fn weights(&self) -> Vec<(ParamId, AnyTensor)>;
    /// Steps the weights with the gradient sums and drops the sums; without an optimizer it only drops them.
    /// Parameter groups of the learning rate and the optimizer match the model's names.
    fn optimize(&mut self, learning_rate: ModuleLearningRate);
    /// The number of microbatches between their forward and the last part of their backward.
    fn held(&self) -> usize;
    /// Drops everything held and the gradients.
    fn clear(&mut self);
    /// Drops what a failed call left: everything held, and everything offered. Gradients stay.
    fn restart(&mut self);
}

impl<M: Stage> ErasedStage for Typed<M> {
    fn choose(&mut self, split: SplitBackward, splits: bool, keep_outputs: bool) {
        self.choose_engine(split, splits, keep_outputs);
    }

    fn prepare(&mut self, accumulation: Accumulation, optimizer: Option<ModuleOptimizer>) {
        self.store = GradientStore::new(accumulation).widening(self.options.precision.is_some());
        self.optimizer = optimizer;
        self.settle_types();
    }

    fn report(&self) -> EngineReport {
        self.engine.report()
    }

    fn forward(&mut self, call: ForwardCall) -> Result<ForwardOutput, StageError> {
        let code = StageCode { function: &self.function, module: Self::present(&self.module)? };
        self.engine.forward(&code, call)
    }

    fn evaluate(&self, call: ForwardCall) -> Result<(Payload, Option<LossPart>), StageError> {
        let module = Self::present(&self.module)?.valid();
        let output = self.function.output(&module, call.microbatch, call.input, call.extra)?.into_payload();
        refuse_given(output.tensors())?;
        if self.batch_checks().target.is_none() || call.target.is_none() {
            return Ok((output, None));
        }
        let given = M::Output::from_payload(output.clone()).map_err(StageError::Input)?;
        Ok((output, Some(LossPart::from(self.function.loss(given, call.target)?))))
    }

    fn backward(&mut self, microbatch: usize, seeds: Gradients) -> Result<Gradients, StageError> {
        self.engine.backward(Self::present(&self.module)?, microbatch, seeds, &mut self.store)
    }

    fn backward_input(&mut self, microbatch: usize, seeds: Gradients) -> Result<Gradients, StageError> {
        self.engine.backward_input(Self::present(&self.module)?, microbatch, seeds)
    }

    fn backward_weight(&mut self, microbatch: usize) -> Result<(), StageError> {
        self.engine.backward_weight(Self::present(&self.module)?, microbatch, &mut self.store)
    }

    fn backward_weights(&mut self, microbatches: &[usize]) -> Result<(), StageError> {
        self.engine.backward_weights(Self::present(&self.module)?, microbatches, &mut self.store)
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

    fn held(&self) -> usize {
        self.engine.held()
    }

    fn clear(&mut self) {
        self.forget();
    }

    fn restart(&mut self) {
        (self.offered, self.replacement) = (None, None);
        self.engine.clear();
        self.module.iter().for_each(free_abandoned);
        // A forward that panicked while it was recorded may have been mistaken for one that cannot be captured. And
        // if the ranks that hold the stage compare their recordings, some have done so in the failed call, and others
        // not.
        if self.options.members.is_some() || !self.engine.report().captured {
            let (split, splits, keep_outputs) = self.chosen;
            self.choose_engine(split, splits, keep_outputs);
        }
    }
}
