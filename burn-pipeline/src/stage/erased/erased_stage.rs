//! What the executor drives: a stage with its module's type hidden.
//!
//! Guarantees: the executor sees payloads and gradients, never a module's type.

use crate::stage::batch::LossPart;
use crate::stage::boundary::AnyTensor;
use crate::stage::boundary::Payload;
use crate::stage::boundary::StageMetadata;
use crate::stage::engine::BatchChecks;
#[cfg(doc)]
use crate::stage::engine::Engine;
use crate::stage::engine::{
    ActivationBytes, Direction, EngineReport, ForwardCall, ForwardOutput, Gradients, SplitBackward, StageWork,
    WorkResult, WorkStarted,
};
use crate::stage::error::StageError;
use crate::stage::random::ForwardSeed;
use crate::stage::state::NamedParameter;
use crate::stage::state::Names;
use crate::stage::state::{Accumulation, GradientStore};
use crate::stage::state::{NamedWeight, ParameterState, StageState};
use burn::module::ParamId;
use burn::optim::ModuleOptimizer;
use std::any::Any;
use std::collections::HashMap;

/// What the executor needs of a stage.
pub trait ErasedStage: Send {
    /// The module's type, for messages.
    fn module_type(&self) -> &'static str;
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
    fn takes(&self) -> BatchChecks;
    /// Has it a loss?
    fn has_loss(&self) -> bool;
    /// What was declared of its boundary.
    fn declared(&self) -> Option<&StageMetadata>;
    /// Declares what it takes and hands on.
    fn set_declared(&mut self, metadata: StageMetadata);
    /// Sets how gradients are added and who steps the weights.
    fn prepare(&mut self, accumulation: Accumulation, optimizer: Option<ModuleOptimizer>);
    /// Says where the forwards of the next batches draw random numbers from.
    fn set_forward_seed(&mut self, seed: ForwardSeed);
    /// Starts a pass over a batch: ordered sums start at microbatch `first`; `None` holds all gradients back
    /// until they are released.
    fn begin(&mut self, first: Option<usize>);
    /// A training forward.
    ///
    /// # Errors
    /// See [`Engine::forward`].
    fn forward(&mut self, call: ForwardCall) -> Result<ForwardOutput, StageError>;
    /// A forward without autodiff: the outputs and, where there is a loss and a target, the loss.
    ///
    /// # Errors
    /// If the call's parts do not fit the stage.
    fn evaluate(&self, call: ForwardCall) -> Result<(Payload, Option<LossPart>), StageError>;
    /// `B`.
    ///
    /// # Errors
    /// See [`Engine::backward`].
    fn backward(&mut self, microbatch: usize, seeds: Gradients) -> Result<Gradients, StageError>;
    /// `I`.
    ///
    /// # Errors
    /// See [`Engine::backward_input`].
    fn backward_input(&mut self, microbatch: usize, seeds: Gradients) -> Result<Gradients, StageError>;
    /// `W`.
    ///
    /// # Errors
    /// See [`Engine::backward_weight`].
    fn backward_weight(&mut self, microbatch: usize) -> Result<(), StageError>;
    /// `W` of several microbatches at once.
    ///
    /// # Errors
    /// See [`Engine::backward_weights`].
    fn backward_weights(&mut self, microbatches: &[usize]) -> Result<(), StageError>;
    /// Starts work that is done piece by piece.
    ///
    /// # Errors
    /// See [`Engine::begin`].
    fn begin_work(&mut self, work: StageWork) -> Result<WorkStarted, StageError>;
    /// Runs the next pieces of it.
    ///
    /// # Errors
    /// See [`Engine::advance`].
    fn advance_work(&mut self, direction: Direction, pieces: usize) -> Result<(), StageError>;
    /// Runs what is left of it.
    ///
    /// # Errors
    /// See [`Engine::complete`].
    fn complete_work(&mut self, direction: Direction) -> Result<WorkResult, StageError>;
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
    /// BatchChecks other values and other optimizer state, to be adopted later; nothing changes yet.
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
    /// Gives the module what was observed since the step before; see [`Stage::after_step`](crate::stage::Stage::after_step).
    fn after_step(&mut self, observed: &[Vec<f64>]);
    /// Does anything held refer to the parameters, so that they cannot be replaced before its backward?
    fn pins_weights(&self) -> bool;
    /// Where nothing pins them: lets go of the parameters that microbatches are held with. Their backwards use those that
    /// the module has then.
    fn unload_weights(&mut self);
    /// Says whether its parameters are sharded over data-parallel replicas, whatever the pipeline says of all stages.
    fn set_sharded(&mut self, sharded: bool);
    /// Whether they are, where that was said.
    fn wants_shards(&self) -> Option<bool>;
    /// Does the optimizer step each element of a parameter by itself, so that it can step pieces? Tried on a few elements
    /// of each parameter, two steps long.
    ///
    /// # Errors
    /// What the device reports.
    fn steps_by_element(&self) -> Result<bool, StageError>;
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
