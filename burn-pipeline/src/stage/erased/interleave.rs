//! The executor's access to a stage's engine: seeds of forwards, work in pieces, and what is held.

use super::typed::Typed;
use crate::stage::engine::{Direction, EngineState, StageCode, StageWork, WorkResult, WorkStarted};
use crate::stage::error::StageError;
use crate::stage::module::Stage;
use crate::stage::random::ForwardSeed;

/// Work in pieces, and the engine behind it.
pub(crate) trait InterleaveStage {
    /// What the engine holds.
    fn engine(&self) -> &dyn EngineState;
    /// The engine, to be changed.
    fn engine_mut(&mut self) -> &mut dyn EngineState;
    /// Sets the seed that the forwards of the next batches draw random numbers from.
    fn set_forward_seed(&mut self, seed: ForwardSeed);
    /// Starts a forward or a backward in pieces.
    fn start_work(&mut self, work: StageWork) -> Result<WorkStarted, StageError>;
    /// Runs the rest of it.
    fn complete_work(&mut self, direction: Direction) -> Result<WorkResult, StageError>;
}

impl<M: Stage> InterleaveStage for Typed<M> {
    fn engine(&self) -> &dyn EngineState {
        self.engine.as_ref()
    }

    fn engine_mut(&mut self) -> &mut dyn EngineState {
        self.engine.as_mut()
    }

    fn set_forward_seed(&mut self, seed: ForwardSeed) {
        self.engine.set_forward_seed(seed);
    }

    fn start_work(&mut self, work: StageWork) -> Result<WorkStarted, StageError> {
        let code = StageCode { function: &self.function, module: Self::present(&self.module)? };
        self.engine.start(&code, work, &mut self.store)
    }

    fn complete_work(&mut self, direction: Direction) -> Result<WorkResult, StageError> {
        self.engine.complete(direction, &mut self.store)
    }
}
