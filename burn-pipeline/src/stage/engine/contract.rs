//! How a stage's forward and backward are carried out: one trait, several ways with the same numbers.

use super::function::StageFunction;
use crate::stage::Stage;
use crate::stage::batch::LossPart;
use crate::stage::boundary::AnyTensor;
use crate::stage::boundary::Payload;
use crate::stage::error::StageError;
use crate::stage::random::ForwardSeed;
use crate::stage::state::GradientStore;

/// What a forward gets.
#[derive(Clone, Debug)]
pub struct ForwardCall {
    /// The microbatch, numbered over the whole batch.
    pub microbatch: usize,
    /// The stage's input, without autodiff.
    pub input: Payload,
    /// What it reads beside, without autodiff.
    pub extra: Payload,
    /// The target, on a stage that ends its route.
    pub target: Option<Payload>,
    /// Does the stage end its route, so that its loss is wanted instead of its outputs?
    pub ends_route: bool,
    /// Is the gradient of the input wanted (on all stages but the first)?
    pub wants_input_gradient: bool,
}

/// What a training forward hands on, without autodiff.
#[derive(Clone, Debug)]
pub enum ForwardOutput {
    /// The outputs, for the next stage.
    Activations(Payload),
    /// The loss of a stage that ends its route.
    Loss(Box<LossPart>),
}

/// One gradient a tensor of a payload; `None` for a tensor that has none.
pub type Gradients = Vec<Option<AnyTensor>>;

/// Bytes that a microbatch leaves behind for its backward, parameters not counted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct ActivationBytes {
    /// After `F`.
    pub after_forward: usize,
    /// After `I`.
    pub after_input: usize,
    /// What the backward makes anew before it runs, beyond what `F` left, where activations are recomputed.
    pub recomputed: usize,
}

/// Work that is done piece by piece, so that a forward and a backward can be interleaved.
#[derive(Clone, Debug)]
pub enum StageWork {
    /// `F`.
    Forward(ForwardCall),
    /// `B` of a microbatch.
    Backward(usize, Gradients),
    /// `I` of a microbatch.
    BackwardInput(usize, Gradients),
}

/// Which of the two pieces of work that a stage may have begun: one forward and one backward.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// A forward.
    Forward,
    /// A backward, `B` or `I`.
    Backward,
}

/// What beginning a piece of work gave.
#[derive(Clone, Debug)]
pub enum WorkStarted {
    /// It can be done in so many pieces: each enqueues one operation on the device.
    Pieces(usize),
    /// It cannot be done in pieces, and was done.
    Finished(WorkResult),
}

/// What work gave.
#[derive(Clone, Debug)]
pub enum WorkResult {
    /// Of a forward.
    Forward(ForwardOutput),
    /// Of a backward: the gradients of the input.
    Backward(Gradients),
}

/// Which way stages run their backwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SplitBackward {
    /// Captured where the plan runs `I` and `W` and the stage can be captured, else plainly.
    #[default]
    Auto,
    /// By Burn's autodiff: `I` computes both gradients and `W` only adds the weights', but for the layers that
    /// defer theirs (see [`DeferredForward`](crate::ops::DeferredForward)).
    Eager,
    /// From captured programs, whatever the plan; a stage that cannot be captured fails and says why.
    Captured,
}

/// How much of a stage's weight gradients its `I` leaves to its `W`, measured on one microbatch.
///
/// A parameter counts as deferred if no part of its gradient is computed in `I`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeferredShare {
    /// Operations that left weight gradients for `W`.
    pub operations: usize,
    /// Elements of the parameters whose gradient was deferred.
    pub elements: usize,
    /// Elements of all parameters that got a gradient.
    pub of: usize,
}

impl DeferredShare {
    /// Deferred elements over all, between 0 and 1; 0 where there are no parameters.
    pub fn share(&self) -> f64 {
        self.elements as f64 / self.of.max(1) as f64
    }
}

/// The way a stage's forwards and backwards are run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EngineKind {
    /// By Burn's autodiff.
    Eager,
    /// From programs that were captured once and are replayed.
    Captured,
}

impl std::fmt::Display for EngineKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            EngineKind::Eager => "eager",
            EngineKind::Captured => "captured",
        })
    }
}

/// The way a stage is run, and the reason for it.
#[derive(Clone, Debug)]
pub struct EngineReport {
    /// The engine.
    pub engine: EngineKind,
    /// Why this one.
    pub reason: String,
    /// What deferred operations left for `W`; `None` before the first `W`, and where no operation can defer (in a
    /// plan that does not split, and from captured programs, whose report is their own).
    pub deferred: Option<DeferredShare>,
    /// The programs that the stage was captured as, one for each form of its inputs.
    pub programs: Vec<std::sync::Arc<crate::program::StagePrograms>>,
}

impl EngineReport {
    /// A stage run by Burn's autodiff.
    pub fn eager(reason: impl Into<String>) -> Self {
        Self { engine: EngineKind::Eager, reason: reason.into(), deferred: None, programs: Vec::new() }
    }
}

/// A way to run a stage's forwards and backwards. It holds what backwards need, per microbatch.
///
/// Whatever the way, `backward` equals `backward_input` followed by `backward_weight`.
pub trait Engine<M: Stage>: Send {
    /// The way the stage is run, and the reason for it.
    fn report(&self) -> EngineReport;

    /// Runs the forward of a microbatch and holds what its backward needs.
    ///
    /// # Errors
    /// If the call's parts do not fit the stage.
    fn forward(
        &mut self,
        function: &StageFunction<M>,
        module: &M,
        call: ForwardCall,
    ) -> Result<ForwardOutput, StageError>;

    /// Runs the forward of a microbatch as in training and holds nothing of it.
    ///
    /// # Errors
    /// As `forward`.
    fn forward_only(
        &mut self,
        function: &StageFunction<M>,
        module: &M,
        call: ForwardCall,
    ) -> Result<ForwardOutput, StageError>;

    /// Says where forwards that it runs again by itself draw from.
    fn set_forward_seed(&mut self, seed: ForwardSeed) {
        let _ = seed;
    }

    /// `B`: gives the gradients of the input and adds those of the weights to the store.
    ///
    /// `seeds` holds the gradient of each output tensor, or the loss's seed.
    ///
    /// # Errors
    /// If the microbatch is not held or a gradient does not fit its output.
    fn backward(
        &mut self,
        module: &M,
        microbatch: usize,
        seeds: Gradients,
        store: &mut GradientStore,
    ) -> Result<Gradients, StageError>;

    /// `I`: gives the gradients of the input and holds what `backward_weight` needs.
    ///
    /// # Errors
    /// As `backward`.
    fn backward_input(&mut self, module: &M, microbatch: usize, seeds: Gradients) -> Result<Gradients, StageError>;

    /// `W`: adds the gradients of the weights to the store.
    ///
    /// # Errors
    /// If no `backward_input` of this microbatch is held.
    fn backward_weight(&mut self, module: &M, microbatch: usize, store: &mut GradientStore) -> Result<(), StageError>;

    /// `W` of several microbatches at once: the same gradients up to the order of additions.
    ///
    /// # Errors
    /// As `backward_weight`.
    fn backward_weights(
        &mut self,
        module: &M,
        microbatches: &[usize],
        store: &mut GradientStore,
    ) -> Result<(), StageError> {
        microbatches.iter().try_for_each(|&microbatch| self.backward_weight(module, microbatch, store))
    }

    /// Starts a forward or a backward of which the caller decides how far it goes when; see [`WorkStarted`].
    ///
    /// # Errors
    /// As the work by itself.
    fn begin(
        &mut self,
        function: &StageFunction<M>,
        module: &M,
        work: StageWork,
        store: &mut GradientStore,
    ) -> Result<WorkStarted, StageError> {
        Ok(WorkStarted::Finished(match work {
            StageWork::Forward(call) => WorkResult::Forward(self.forward(function, module, call)?),
            StageWork::Backward(microbatch, seeds) => {
                WorkResult::Backward(self.backward(module, microbatch, seeds, store)?)
            }
            StageWork::BackwardInput(microbatch, seeds) => {
                WorkResult::Backward(self.backward_input(module, microbatch, seeds)?)
            }
        }))
    }

    /// Runs the next pieces of work that was begun.
    ///
    /// # Errors
    /// If no such work was begun.
    fn advance(&mut self, direction: Direction, pieces: usize) -> Result<(), StageError> {
        let _ = (direction, pieces);
        Err(StageError::NotHeld)
    }

    /// Runs what is left of work that was begun, and hands its results out.
    ///
    /// # Errors
    /// If no such work was begun.
    fn complete(&mut self, direction: Direction, store: &mut GradientStore) -> Result<WorkResult, StageError> {
        let _ = (direction, store);
        Err(StageError::NotHeld)
    }

    /// Microbatches held between forward and the last part of their backward.
    fn held(&self) -> usize;

    /// Does anything held refer to the module's parameters, so that they cannot be replaced before its backward?
    fn pins_weights(&self) -> bool {
        self.held() > 0
    }

    /// Where nothing pins them: lets go of the module's parameters, which backwards are given anew.
    fn unload_weights(&mut self) {}

    /// Bytes held between forward and the last part of their backward, parameters not counted; `None` where the
    /// engine cannot tell.
    fn held_bytes(&self) -> Option<usize> {
        None
    }

    /// What the largest microbatch so far leaves behind; `None` where the engine cannot tell.
    fn activation(&self) -> Option<ActivationBytes> {
        None
    }

    /// Lets go of everything held (after a failure).
    fn clear(&mut self);
}
