//! A stage with its module's type hidden: what a rank holds and the executor drives.
//!
//! Guarantees: the executor sees payloads and gradients, never a module's type. The module, its engine, its
//! gradient sums and its optimizer live together, on the rank that built them.

use super::Stage;
use super::any_tensor::AnyTensor;
use super::boundary::{Boundary, Payload};
use super::draws::Draws;
use super::eager::{Eager, parameter_ids};
use super::engine::{
    ActivationBytes, Begun, Done, Engine, EngineReport, ForwardCall, Gradients, Outcome, SplitBackward, Work,
    WorkDirection,
};
use super::error::StageError;
use super::form::Form;
use super::function::{StageFunction, Takes};
use super::gradients::{Accumulation, GradientStore};
use super::loss::{Loss, LossPart};
use super::metadata::StageMetadata;
use super::named::{NamedParameter, named_parameters, retie};
use super::names::Names;
use super::recompute::Recompute;
use super::state::{NamedWeight, ParameterState, StageState, named_weights, optimizer_state};
use super::state::{with_optimizer_state, with_weights};
#[cfg(feature = "traced")]
use super::traced::Traced;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::Tensor;
use std::any::Any;
use std::collections::HashMap;

/// A stage of any module type, as the factory of a pipeline returns it.
pub struct StageBox(Box<dyn ErasedStage>);

impl std::fmt::Debug for StageBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("StageBox").field(&self.0.module_type()).finish()
    }
}

impl StageBox {
    /// A stage that hands its outputs on.
    pub fn new<M: Stage>(module: M) -> Self {
        Self::from_parts(module, StageFunction::forward_only())
    }

    /// The last stage of a model, with the loss over its outputs and the batch's target.
    ///
    /// The loss is a `Tensor<1>` of one element, or a [`Loss`] with a weight.
    pub fn with_loss<M: Stage, T: Boundary, L: Into<Loss>>(
        module: M,
        loss: impl Fn(M::Output, T) -> L + Send + Sync + 'static,
    ) -> Self {
        Self::from_parts(module, StageFunction::with_loss(loss))
    }

    fn from_parts<M: Stage>(module: M, function: StageFunction<M>) -> Self {
        Self(Box::new(Typed {
            module: Some(module),
            function,
            engine: Box::new(Eager::because(NOT_CHOSEN)),
            store: GradientStore::default(),
            optimizer: None,
            declared: None,
            names: Names::default(),
            offered: None,
            draws: Draws::default(),
            recompute: false,
        }))
    }

    /// Declares what the stage takes and hands on; see [`StageMetadata`]. The last stage, which gives a loss, has no
    /// output to declare.
    pub fn declare(mut self, input: Form, output: Option<Form>) -> Self {
        self.0.set_declared(StageMetadata { input: Some(input), output, ..StageMetadata::default() });
        self
    }

    /// Says how the stage's parameters are called in the whole model, so that checkpoints fit other cuts; by default
    /// by their paths within the stage.
    pub fn named(mut self, names: Names) -> Self {
        self.0.set_names(names);
        self
    }

    /// Keeps the stage's input alone from its forward to its backward, and runs the forward again there: less memory
    /// for each microbatch that waits, and one forward more to compute.
    pub fn recomputed(mut self, recompute: bool) -> Self {
        self.0.set_recompute(recompute);
        self
    }

    /// The stage, to be driven.
    pub fn into_inner(self) -> Box<dyn ErasedStage> {
        self.0
    }
}

/// What the executor needs of a stage.
pub trait ErasedStage: Send {
    /// The module's type, for messages.
    fn module_type(&self) -> &'static str;
    /// How its forwards and backwards are run.
    fn engine(&self) -> &'static str;
    /// How they are run, why, and what the stage was captured as.
    fn report(&self) -> EngineReport;
    /// Chooses how they are run; `splits` says whether the plan runs `I` and `W` on this stage, `keep_outputs`
    /// whether the eager way holds outputs until their backward. Before any
    /// forward.
    ///
    /// # Errors
    /// If that way is not built in.
    fn choose(&mut self, split: SplitBackward, splits: bool, keep_outputs: bool) -> Result<(), StageError>;
    /// Names of the extras it reads.
    fn extras(&self) -> Vec<&'static str>;
    /// What it takes from the batch.
    fn takes(&self) -> Takes;
    /// Has it a loss?
    fn has_loss(&self) -> bool;
    /// What was declared of its boundary.
    fn declared(&self) -> Option<&StageMetadata>;
    /// Declares what it takes and hands on.
    fn set_declared(&mut self, metadata: StageMetadata);
    /// Sets how gradients are added and who steps the weights.
    fn prepare(&mut self, accumulation: Accumulation, optimizer: Option<ModuleOptimizer>);
    /// Says where the forwards of the next batches draw random numbers from.
    fn draw_from(&mut self, draws: Draws);
    /// Starts a pass over a batch: ordered sums start at microbatch `first`; `None` holds all gradients back
    /// until they are released.
    fn begin(&mut self, first: Option<usize>);
    /// A training forward.
    ///
    /// # Errors
    /// See [`Engine::forward`].
    fn forward(&mut self, call: ForwardCall) -> Result<Outcome, StageError>;
    /// A forward without autodiff: the outputs and, where there is a loss and a target, the loss.
    ///
    /// # Errors
    /// If the call's parts do not fit the stage.
    fn evaluate(&self, call: ForwardCall) -> Result<(Payload, Option<LossPart>), StageError>;
    /// `B`.
    ///
    /// # Errors
    /// See [`Engine::backward`].
    fn backward(&mut self, sample: usize, seeds: Gradients) -> Result<Gradients, StageError>;
    /// `I`.
    ///
    /// # Errors
    /// See [`Engine::backward_input`].
    fn backward_input(&mut self, sample: usize, seeds: Gradients) -> Result<Gradients, StageError>;
    /// `W`.
    ///
    /// # Errors
    /// See [`Engine::backward_weight`].
    fn backward_weight(&mut self, sample: usize) -> Result<(), StageError>;
    /// `W` of several microbatches at once.
    ///
    /// # Errors
    /// See [`Engine::backward_weights`].
    fn backward_weights(&mut self, samples: &[usize]) -> Result<(), StageError>;
    /// Starts work that is done piece by piece.
    ///
    /// # Errors
    /// See [`Engine::begin`].
    fn begin_work(&mut self, work: Work) -> Result<Begun, StageError>;
    /// Runs the next pieces of it.
    ///
    /// # Errors
    /// See [`Engine::advance`].
    fn advance_work(&mut self, direction: WorkDirection, pieces: usize) -> Result<(), StageError>;
    /// Runs what is left of it.
    ///
    /// # Errors
    /// See [`Engine::complete`].
    fn complete_work(&mut self, direction: WorkDirection) -> Result<Done, StageError>;
    /// The gathered weight gradients.
    fn gradients(&mut self) -> &mut GradientStore;
    /// Parameters in visiting order.
    fn parameters(&self) -> Vec<ParamId>;
    /// Parameters by name, in visiting order; one that sits in several places comes once for each.
    fn named_parameters(&self) -> Vec<NamedParameter>;
    /// The value of every parameter, in visiting order, without autodiff.
    fn weights(&self) -> Vec<(ParamId, AnyTensor)>;
    /// Brings running statistics up to date: Burn keeps the last update of each thread aside.
    fn settle(&mut self);
    /// Replaces the value of every parameter, in visiting order.
    fn set_weights(&mut self, weights: Vec<AnyTensor>);
    /// Has it an optimizer?
    fn has_optimizer(&self) -> bool;
    /// Says whether its activations are recomputed; before it is chosen how the stage is run.
    fn set_recompute(&mut self, recompute: bool);
    /// Says how its parameters are called in the whole model.
    fn set_names(&mut self, names: Names);
    /// All its parameters and buffers, in visiting order.
    fn named_weights(&self) -> Vec<NamedWeight>;
    /// What its optimizer keeps, by parameter; `None` without an optimizer.
    ///
    /// # Errors
    /// What Burn says of the optimizer's record.
    fn optimizer_state(&self) -> Result<Option<HashMap<ParamId, ParameterState>>, StageError>;
    /// Takes other values and other optimizer state, to be adopted later; nothing changes yet.
    ///
    /// # Errors
    /// If the optimizer does not keep what it is given.
    fn offer(&mut self, state: StageState) -> Result<(), StageError>;
    /// Adopts what was offered, if anything was, and forgets gradients and everything held.
    fn adopt(&mut self);
    /// Lets go of what was offered.
    fn decline(&mut self);
    /// Steps the weights with the gathered gradients, and forgets them; without an optimizer it only forgets.
    fn optimize(&mut self, learning_rate: f64);
    /// Microbatches held between forward and the last part of their backward.
    fn held(&self) -> usize;
    /// Bytes held between forward and the last part of their backward, where the engine can tell.
    fn held_bytes(&self) -> Option<usize>;
    /// What the largest microbatch so far leaves behind, where the engine can tell.
    fn activation(&self) -> Option<ActivationBytes>;
    /// Lets go of everything held, and of the gradients (after a failure).
    fn clear(&mut self);
    /// A copy of the module, behind `Any` (its type is the factory's).
    fn module(&self) -> Box<dyn Any + Send>;
}

struct Typed<M: Stage> {
    /// `None` only while the optimizer, which takes and returns it, is at work.
    module: Option<M>,
    function: StageFunction<M>,
    engine: Box<dyn Engine<M>>,
    store: GradientStore,
    optimizer: Option<ModuleOptimizer>,
    declared: Option<StageMetadata>,
    names: Names,
    draws: Draws,
    recompute: bool,
    /// What a checkpoint offers, until all ranks have found theirs in order.
    offered: Option<(HashMap<ParamId, AnyTensor>, Option<ModuleOptimizer>)>,
}

const NOT_CHOSEN: &str = "no other way was chosen";
#[cfg(not(feature = "traced"))]
const NOT_BUILT: &str = "burn-pipeline was built without its feature `traced`";
const LOST: &str = "the optimizer panicked and took the stage's module with it; build the pipeline anew";

impl<M: Stage> Typed<M> {
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

    fn engine(&self) -> &'static str {
        self.engine.name()
    }

    fn report(&self) -> EngineReport {
        self.engine.report()
    }

    fn choose(&mut self, split: SplitBackward, splits: bool, keep_outputs: bool) -> Result<(), StageError> {
        let eager = |reason| Box::new(Eager::because(reason).keeping_outputs(keep_outputs).deferring(splits));
        let engine: Box<dyn Engine<M>> = match (split, splits) {
            (SplitBackward::Eager, _) => eager("it was asked for"),
            (SplitBackward::Auto, false) => eager("the plan does not split its backward"),
            #[cfg(feature = "traced")]
            (SplitBackward::Auto, true) => Box::new(Traced::new(false)),
            #[cfg(feature = "traced")]
            (SplitBackward::Traced, _) => Box::new(Traced::new(true)),
            #[cfg(not(feature = "traced"))]
            (SplitBackward::Auto, true) => eager(NOT_BUILT),
            #[cfg(not(feature = "traced"))]
            (SplitBackward::Traced, _) => return Err(StageError::Unsupported(NOT_BUILT.to_owned())),
        };
        self.engine = self.wrapped(engine);
        Ok(())
    }

    fn extras(&self) -> Vec<&'static str> {
        self.module.as_ref().map(M::extras).unwrap_or_default()
    }

    fn takes(&self) -> Takes {
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

    fn draw_from(&mut self, draws: Draws) {
        self.engine.draw_from(draws);
        self.draws = draws;
    }

    fn begin(&mut self, first: Option<usize>) {
        self.store.begin(first);
    }

    fn forward(&mut self, call: ForwardCall) -> Result<Outcome, StageError> {
        let module = Self::lent(&self.module)?;
        let _turn = self.draws.begin(call.sample, module);
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
        Ok((output, Some(LossPart { value: AnyTensor::new(loss.value), weight: loss.weight })))
    }

    fn backward(&mut self, sample: usize, seeds: Gradients) -> Result<Gradients, StageError> {
        self.engine.backward(Self::lent(&self.module)?, sample, seeds, &mut self.store)
    }

    fn backward_input(&mut self, sample: usize, seeds: Gradients) -> Result<Gradients, StageError> {
        self.engine.backward_input(Self::lent(&self.module)?, sample, seeds)
    }

    fn backward_weight(&mut self, sample: usize) -> Result<(), StageError> {
        self.engine.backward_weight(Self::lent(&self.module)?, sample, &mut self.store)
    }

    fn backward_weights(&mut self, samples: &[usize]) -> Result<(), StageError> {
        self.engine.backward_weights(Self::lent(&self.module)?, samples, &mut self.store)
    }

    fn begin_work(&mut self, work: Work) -> Result<Begun, StageError> {
        match work {
            // It has its turn to draw as a whole.
            Work::Forward(call) if self.draws.are_seeded() => Ok(Begun::Whole(Done::Forward(self.forward(call)?))),
            work => self.engine.begin(&self.function, Self::lent(&self.module)?, work, &mut self.store),
        }
    }

    fn advance_work(&mut self, direction: WorkDirection, pieces: usize) -> Result<(), StageError> {
        self.engine.advance(direction, pieces)
    }

    fn complete_work(&mut self, direction: WorkDirection) -> Result<Done, StageError> {
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
        self.engine = self.wrapped(Box::new(Eager::because(NOT_CHOSEN)));
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
            let mut collect = Collect { store: &mut self.store, gradients: GradientsParams::new() };
            module.visit(&mut collect);
            let gradients = collect.gradients;
            self.module = Some(retie(optimizer.step(learning_rate, module, gradients)));
        }
        self.store.clear();
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

/// Moves gathered gradients into the form that Burn's optimizers take.
struct Collect<'a> {
    store: &'a mut GradientStore,
    gradients: GradientsParams,
}

impl ModuleVisitor for Collect<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.store.remove(param.id) {
            self.gradients.register(param.id, Tensor::<D>::from_dispatch(gradient.into_dispatch()));
        }
    }
}
