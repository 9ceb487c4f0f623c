//! A stage of a known module type, behind [`ErasedStage`]: the module, its engine, its gradient sums and its optimizer,
//! together on the rank that built them.

use crate::stage::Stage;
use crate::stage::batch::LossPart;
use crate::stage::boundary::AnyTensor;
use crate::stage::boundary::StageMetadata;
use crate::stage::boundary::{Boundary, Payload};
use crate::stage::engine::Captured;
use crate::stage::engine::Eager;
use crate::stage::engine::Recompute;
use crate::stage::engine::{
    ActivationBytes, Direction, Engine, EngineReport, ForwardCall, ForwardOutput, Gradients, SplitBackward, StageWork,
    WorkResult, WorkStarted,
};
use crate::stage::engine::{BatchChecks, StageFunction};
use crate::stage::error::StageError;
use crate::stage::random::ForwardSeed;
use crate::stage::state::Names;
use crate::stage::state::{Accumulation, GradientStore};
use crate::stage::state::{NamedParameter, collected, named_parameters, parameter_ids, retie};
use crate::stage::state::{NamedWeight, ParameterState, StageState, named_weights, optimizer_state};
use crate::stage::state::{with_optimizer_state, with_weights};
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::ModuleOptimizer;
use burn::tensor::Tensor;
use std::any::Any;
use std::collections::HashMap;

use super::erased_stage::ErasedStage;
use crate::stage::state::steps_by_element;

pub(in crate::stage) struct Typed<M: Stage> {
    /// `None` only while the optimizer or `after_step`, which take and return it, is at work.
    module: Option<M>,
    function: StageFunction<M>,
    engine: Box<dyn Engine<M>>,
    store: GradientStore,
    optimizer: Option<ModuleOptimizer>,
    declared: Option<StageMetadata>,
    names: Names,
    seed: ForwardSeed,
    recompute: bool,
    sharded: Option<bool>,
    /// What a checkpoint offers, until all ranks have found theirs in order.
    offered: Option<(HashMap<ParamId, AnyTensor>, Option<ModuleOptimizer>)>,
}

const NOT_CHOSEN: &str = "no other way was chosen";
const LOST: &str =
    "the optimizer or the stage's `after_step` panicked and took its module along; build the pipeline anew";

impl<M: Stage> Typed<M> {
    pub(in crate::stage) fn new(module: M, function: StageFunction<M>) -> Self {
        Self {
            module: Some(module),
            function,
            engine: Box::new(Eager::new(NOT_CHOSEN)),
            store: GradientStore::default(),
            optimizer: None,
            declared: None,
            names: Names::default(),
            offered: None,
            seed: ForwardSeed::default(),
            recompute: false,
            sharded: None,
        }
    }

    fn lent(module: &Option<M>) -> Result<&M, StageError> {
        module.as_ref().ok_or_else(|| StageError::Unsupported(LOST.to_owned()))
    }

    /// The engine, or the one around it that recomputes.
    fn wrapped(&self, engine: Box<dyn Engine<M>>) -> Box<dyn Engine<M>> {
        if self.recompute { Box::new(Recompute::new(engine, self.function.clone())) } else { engine }
    }
}

impl<M: Stage> ErasedStage for Typed<M> {
    fn module_type(&self) -> &'static str {
        std::any::type_name::<M>()
    }

    fn report(&self) -> EngineReport {
        self.engine.report()
    }

    fn choose(&mut self, split: SplitBackward, splits: bool, keep_outputs: bool) -> Result<(), StageError> {
        let eager = |reason| Box::new(Eager::new(reason).keeping_outputs(keep_outputs).deferring(splits));
        let engine: Box<dyn Engine<M>> = match (split, splits) {
            (SplitBackward::Eager, _) => eager("it was asked for"),
            (SplitBackward::Auto, false) => eager("the plan does not split its backward"),
            (SplitBackward::Auto, true) => Box::new(Captured::new(self.function.clone(), false)),
            (SplitBackward::Captured, _) => Box::new(Captured::new(self.function.clone(), true)),
        };
        self.engine = self.wrapped(engine);
        Ok(())
    }

    fn extras(&self) -> Vec<&'static str> {
        self.module.as_ref().map(M::extras).unwrap_or_default()
    }

    fn takes(&self) -> BatchChecks {
        self.function.takes()
    }

    fn has_loss(&self) -> bool {
        self.function.has_loss()
    }

    fn declared(&self) -> Option<&StageMetadata> {
        self.declared.as_ref()
    }

    fn set_declared(&mut self, metadata: StageMetadata) {
        self.declared = Some(metadata);
    }

    fn prepare(&mut self, accumulation: Accumulation, optimizer: Option<ModuleOptimizer>) {
        self.store = GradientStore::new(accumulation);
        self.optimizer = optimizer;
    }

    fn set_forward_seed(&mut self, seed: ForwardSeed) {
        self.engine.set_forward_seed(seed);
        self.seed = seed;
    }

    fn begin(&mut self, first: Option<usize>) {
        self.store.begin(first);
    }

    fn forward(&mut self, call: ForwardCall) -> Result<ForwardOutput, StageError> {
        let module = Self::lent(&self.module)?;
        let _turn = self.seed.begin(call.microbatch, module);
        self.engine.forward(&self.function, module, call)
    }

    fn evaluate(&self, call: ForwardCall) -> Result<(Payload, Option<LossPart>), StageError> {
        let module = Self::lent(&self.module)?.valid();
        let output = self.function.output(&module, call.input, call.extra)?.into_payload();
        if !self.has_loss() || call.target.is_none() {
            return Ok((output, None));
        }
        let loss =
            self.function.loss(M::Output::from_payload(output.clone()).map_err(StageError::Input)?, call.target)?;
        Ok((output, Some(LossPart::from(loss))))
    }

    fn backward(&mut self, microbatch: usize, seeds: Gradients) -> Result<Gradients, StageError> {
        self.engine.backward(Self::lent(&self.module)?, microbatch, seeds, &mut self.store)
    }

    fn backward_input(&mut self, microbatch: usize, seeds: Gradients) -> Result<Gradients, StageError> {
        self.engine.backward_input(Self::lent(&self.module)?, microbatch, seeds)
    }

    fn backward_weight(&mut self, microbatch: usize) -> Result<(), StageError> {
        self.engine.backward_weight(Self::lent(&self.module)?, microbatch, &mut self.store)
    }

    fn backward_weights(&mut self, microbatches: &[usize]) -> Result<(), StageError> {
        self.engine.backward_weights(Self::lent(&self.module)?, microbatches, &mut self.store)
    }

    fn begin_work(&mut self, work: StageWork) -> Result<WorkStarted, StageError> {
        match work {
            // It has its turn to draw as a whole.
            StageWork::Forward(call) if self.seed.are_seeded() => {
                Ok(WorkStarted::Finished(WorkResult::Forward(self.forward(call)?)))
            }
            work => self.engine.begin(&self.function, Self::lent(&self.module)?, work, &mut self.store),
        }
    }

    fn advance_work(&mut self, direction: Direction, pieces: usize) -> Result<(), StageError> {
        self.engine.advance(direction, pieces)
    }

    fn complete_work(&mut self, direction: Direction) -> Result<WorkResult, StageError> {
        self.engine.complete(direction, &mut self.store)
    }

    fn gradients(&mut self) -> &mut GradientStore {
        &mut self.store
    }

    fn parameters(&self) -> Vec<ParamId> {
        self.module.as_ref().map(parameter_ids).unwrap_or_default()
    }

    fn named_parameters(&self) -> Vec<NamedParameter> {
        self.module.as_ref().map(named_parameters).unwrap_or_default()
    }

    fn weights(&self) -> Vec<(ParamId, AnyTensor)> {
        struct Weights(Vec<(ParamId, AnyTensor)>);

        impl ModuleVisitor for Weights {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                self.0.push((param.id, AnyTensor::new(param.val().inner())));
            }
        }

        let mut weights = Weights(Vec::new());
        if let Some(module) = &self.module {
            module.visit(&mut weights);
        }
        weights.0
    }

    fn settle(&mut self) {
        // The copy is thrown away; making it takes the updates in.
        drop(self.module.as_ref().map(Module::valid));
    }

    fn set_weights(&mut self, weights: Vec<AnyTensor>) {
        let ids = self.weights().into_iter().map(|(id, _)| id);
        let weights = ids.zip(weights).collect();
        self.module = self.module.take().map(|module| with_weights(module, &weights));
    }

    fn has_optimizer(&self) -> bool {
        self.optimizer.is_some()
    }

    fn set_recompute(&mut self, recompute: bool) {
        self.recompute = recompute;
        self.engine = self.wrapped(Box::new(Eager::new(NOT_CHOSEN)));
    }

    fn set_names(&mut self, names: Names) {
        self.names = names;
    }

    fn named_weights(&self) -> Vec<NamedWeight> {
        self.module.as_ref().map(|module| named_weights(module, &self.names)).unwrap_or_default()
    }

    fn optimizer_state(&self) -> Result<Option<HashMap<ParamId, ParameterState>>, StageError> {
        self.optimizer.as_ref().map(optimizer_state).transpose().map_err(StageError::OptimizerState)
    }

    fn offer(&mut self, state: StageState) -> Result<(), StageError> {
        let optimizer = match (&self.optimizer, &state.optimizer) {
            (Some(optimizer), Some(states)) => {
                let paths = self.named_weights().into_iter().map(|weight| (weight.id, weight.path)).collect();
                let loaded = with_optimizer_state(optimizer.clone(), states, &paths);
                Some(loaded.map_err(StageError::OptimizerState)?)
            }
            _ => None,
        };
        self.offered = Some((state.weights, optimizer));
        Ok(())
    }

    fn adopt(&mut self) {
        let Some((weights, optimizer)) = self.offered.take() else { return };
        self.module = self.module.take().map(|module| with_weights(module, &weights));
        self.optimizer = optimizer.or(self.optimizer.take());
        self.clear();
    }

    fn decline(&mut self) {
        self.offered = None;
    }

    fn optimize(&mut self, learning_rate: f64) {
        if let Some(optimizer) = &mut self.optimizer
            && let Some(module) = self.module.take()
        {
            let gradients = collected(&module, &mut self.store);
            self.module = Some(retie(optimizer.step(learning_rate, module, gradients)));
        }
        self.store.clear();
    }

    fn after_step(&mut self, observed: &[Vec<f64>]) {
        self.module = self.module.take().map(|module| module.after_step(observed));
    }

    fn pins_weights(&self) -> bool {
        self.engine.pins_weights()
    }

    fn unload_weights(&mut self) {
        self.engine.unload_weights();
    }

    fn set_sharded(&mut self, sharded: bool) {
        self.sharded = Some(sharded);
    }

    fn wants_shards(&self) -> Option<bool> {
        self.sharded
    }

    fn steps_by_element(&self) -> Result<bool, StageError> {
        match (&self.module, &self.optimizer) {
            (Some(module), Some(optimizer)) => steps_by_element(module, optimizer).map_err(StageError::Device),
            _ => Ok(true),
        }
    }

    fn held(&self) -> usize {
        self.engine.held()
    }

    fn held_bytes(&self) -> Option<usize> {
        self.engine.held_bytes()
    }

    fn activation(&self) -> Option<ActivationBytes> {
        self.engine.activation()
    }

    fn clear(&mut self) {
        self.engine.clear();
        self.store.clear();
    }

    fn module(&self) -> Box<dyn Any + Send> {
        Box::new(self.module.clone())
    }
}
