//! The interface of every way to run a stage: forwards, backwards and reports.
//!
//! Guarantees: with every engine, `backward` gives the same numbers as `backward_input` followed by
//! `backward_weight`.

use super::call::{ForwardCall, ForwardOutput, Gradients};
use super::function::StageCode;
use super::report::{ActivationBytes, EngineReport};
use super::work::{Direction, StageWork, WorkResult, WorkStarted};
use crate::stage::error::StageError;
use crate::stage::module::Stage;
use crate::stage::random::ForwardSeed;
use crate::stage::state::GradientStore;

/// The part of an engine that needs no module: what it holds, and work that has started.
pub(crate) trait EngineState: Send {
    /// The engine, the reason for choosing it, and what it measured.
    fn report(&self) -> EngineReport;

    /// Sets the seed that forwards draw random numbers from.
    fn set_forward_seed(&mut self, seed: ForwardSeed);

    /// Runs the next pieces of work that has started.
    fn advance(&mut self, direction: Direction, pieces: usize) -> Result<(), StageError> {
        let _ = (direction, pieces);
        Err(StageError::NotHeld)
    }

    /// Runs the rest of work that has started, and returns its result.
    fn complete(&mut self, direction: Direction, store: &mut GradientStore) -> Result<WorkResult, StageError> {
        let _ = (direction, store);
        Err(StageError::NotHeld)
    }

    /// The number of microbatches between their forward and the last part of their backward.
    fn held(&self) -> usize;

    /// Returns true if anything held refers to the module's parameters, so that they cannot be replaced before its
    /// backward.
    fn pins_weights(&self) -> bool {
        self.held() > 0
    }

    /// Releases the module's parameters if nothing pins them; backwards then read the module's current ones.
    fn unload_weights(&mut self) {}

    /// Bytes held between forward and the last part of their backward, without parameters; `None` if unknown.
    fn held_bytes(&self) -> Option<usize> {
        None
    }

    /// What the largest microbatch so far held for its backward; `None` if unknown.
    fn activation(&self) -> Option<ActivationBytes> {
        None
    }

    /// Drops everything held, after a failure.
    fn clear(&mut self);
}

/// Runs a stage's forwards and backwards, and holds what backwards need, by microbatch.
pub(crate) trait Engine<M: Stage>: EngineState {
    /// Runs the forward of a microbatch and holds what its backward needs.
    fn forward(&mut self, code: &StageCode<'_, M>, call: ForwardCall) -> Result<ForwardOutput, StageError>;

    /// Runs the forward of a microbatch as in training, but holds nothing for a backward; `forward_again` follows.
    /// Fails if the second forward is known to give other numbers.
    fn forward_only(&mut self, code: &StageCode<'_, M>, call: ForwardCall) -> Result<ForwardOutput, StageError>;

    /// Runs the forward of a microbatch again, after `forward_only`, and holds what its backward needs.
    ///
    /// # Errors
    /// As `forward`.
    fn forward_again(&mut self, code: &StageCode<'_, M>, call: ForwardCall) -> Result<ForwardOutput, StageError> {
        self.forward(code, call)
    }

    /// Returns true if `forward_again` of this microbatch certainly gives the numbers of `forward_only`, and runs
    /// none of the user's code.
    fn repeats(&self, microbatch: usize) -> bool {
        let _ = microbatch;
        false
    }

    /// `B`: returns the gradients of the input and adds those of the weights to the store.
    ///
    /// `seeds` holds the gradient of each output tensor, or the loss's seed.
    fn backward(
        &mut self,
        module: &M,
        microbatch: usize,
        seeds: Gradients,
        store: &mut GradientStore,
    ) -> Result<Gradients, StageError>;

    /// `I`: returns the gradients of the input and holds what `backward_weight` needs.
    fn backward_input(&mut self, module: &M, microbatch: usize, seeds: Gradients) -> Result<Gradients, StageError>;

    /// `W`: adds the gradients of the weights to the store.
    fn backward_weight(&mut self, module: &M, microbatch: usize, store: &mut GradientStore) -> Result<(), StageError>;

    /// `W` of several microbatches at once: the same gradients up to the order of additions.
    fn backward_weights(
        &mut self,
        module: &M,
        microbatches: &[usize],
        store: &mut GradientStore,
    ) -> Result<(), StageError> {
        microbatches.iter().try_for_each(|&microbatch| self.backward_weight(module, microbatch, store))
    }

    /// Starts a forward or a backward that the caller advances in pieces; see [`WorkStarted`].
    fn start(
        &mut self,
        code: &StageCode<'_, M>,
        work: StageWork,
        store: &mut GradientStore,
    ) -> Result<WorkStarted, StageError> {
        Ok(WorkStarted::Finished(match work {
            StageWork::Forward(call) => WorkResult::Forward(self.forward(code, call)?),
            StageWork::Backward(microbatch, seeds) => {
                WorkResult::Backward(self.backward(code.module, microbatch, seeds, store)?)
            }
            StageWork::BackwardInput(microbatch, seeds) => {
                WorkResult::Backward(self.backward_input(code.module, microbatch, seeds)?)
            }
        }))
    }
}
