//! The interface of every way to run a stage: forwards, backwards and reports.
//!
//! Guarantees: with every engine, a whole `backward` gives the same numbers as one of the input alone followed by
//! `backward_weight`.

use super::call::{BackwardCall, ForwardCall, ForwardOutput, Gradients};
use super::function::StageCode;
use super::report::{ActivationBytes, EngineReport};
use crate::stage::error::StageError;
use crate::stage::module::Stage;
use crate::stage::random::ForwardSeed;
use crate::stage::state::GradientStore;

/// The two kinds of work that may run in pieces on a stage at the same time, one of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// A forward.
    Forward,
    /// A backward, `B` or `I`.
    Backward,
}

/// The state of work once it has started.
#[derive(Clone, Debug)]
pub(crate) enum Started<T> {
    /// It runs in this many pieces; each enqueues one operation on the device.
    Pieces(usize),
    /// It cannot run in pieces, and has finished with this result.
    Finished(T),
}

impl<T> Started<T> {
    /// The number of pieces; `None` if it has finished.
    pub(crate) fn pieces(&self) -> Option<usize> {
        match self {
            Started::Pieces(pieces) => Some(*pieces),
            Started::Finished(_) => None,
        }
    }
}

/// The part of an engine that needs no module: what it holds, and work that has started.
pub(crate) trait EngineState: Send {
    /// The engine, the reason for choosing it, and what it measured.
    fn report(&self) -> EngineReport;

    /// Sets the seed that forwards draw random numbers from.
    fn set_forward_seed(&mut self, seed: ForwardSeed);

    /// Runs the next piece of work that has started.
    fn advance(&mut self, direction: Direction) -> Result<(), StageError> {
        let _ = direction;
        Err(StageError::NotHeld)
    }

    /// Runs the rest of a forward that has started.
    fn complete_forward(&mut self) -> Result<ForwardOutput, StageError> {
        Err(StageError::NotHeld)
    }

    /// Runs the rest of a backward that has started.
    fn complete_backward(&mut self, store: &mut GradientStore) -> Result<Gradients, StageError> {
        let _ = store;
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
    fn forward_again(&mut self, code: &StageCode<'_, M>, call: ForwardCall) -> Result<ForwardOutput, StageError> {
        self.forward(code, call)
    }

    /// Returns true if `forward_again` of this microbatch certainly gives the numbers of `forward_only`, and runs
    /// none of the user's code.
    fn repeats(&self, microbatch: usize) -> bool {
        let _ = microbatch;
        false
    }

    /// `B` or `I`: returns the gradients of the input. `B` adds those of the weights to the store; `I` holds what
    /// `backward_weight` needs.
    fn backward(
        &mut self,
        code: &StageCode<'_, M>,
        call: BackwardCall,
        store: &mut GradientStore,
    ) -> Result<Gradients, StageError>;

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

    /// Starts a forward that the caller advances in pieces.
    fn start_forward(
        &mut self,
        code: &StageCode<'_, M>,
        call: ForwardCall,
    ) -> Result<Started<ForwardOutput>, StageError> {
        self.forward(code, call).map(Started::Finished)
    }

    /// Starts a backward that the caller advances in pieces.
    fn start_backward(
        &mut self,
        code: &StageCode<'_, M>,
        call: BackwardCall,
        store: &mut GradientStore,
    ) -> Result<Started<Gradients>, StageError> {
        self.backward(code, call, store).map(Started::Finished)
    }
}
