//! The ways to run a stage's forwards and backwards, all with the same numbers.
//!
//! Reading order: [`call`] (what forwards and backwards take and return), [`function`] (module and loss as one function
//! of tensors), [`contract`] (what an engine offers), [`recording`] (a forward and its backward as a list of
//! operations), [`casts`] (types that the device does not compute in), [`seeded`] (random numbers of eager forwards),
//! [`eager`] (Burn's autodiff), [`captured`] (replayed programs), [`recompute`] (around either of them), [`report`].

mod call;
mod captured;
mod casts;
mod contract;
mod eager;
mod function;
mod recompute;
mod recording;
mod report;
mod seeded;

pub(crate) use call::{BackwardCall, ForwardCall, ForwardOutput, Gradients};
pub(super) use captured::Captured;
pub(super) use casts::refuse_given;
pub(crate) use contract::{Direction, Engine, EngineState, Started};
pub(super) use eager::Eager;
pub(crate) use function::{
    BatchChecks, LossFunction, PayloadCheck, StageCode, StageFunction, check, depends_on_microbatch, microbatch,
};
pub(super) use recompute::Recompute;
pub use report::{ActivationBytes, DeferredShare, EngineReport, SplitBackward};
