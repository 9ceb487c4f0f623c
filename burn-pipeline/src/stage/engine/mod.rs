//! The ways to run a stage's forwards and backwards, with the same numbers.

mod captured;
mod contract;
mod eager;
mod function;
mod recompute;

pub(super) use captured::Captured;
pub use contract::{
    ActivationBytes, DeferredShare, Direction, Engine, EngineKind, EngineReport, ForwardCall, ForwardOutput, Gradients,
    SplitBackward, StageWork, WorkResult, WorkStarted,
};
pub(super) use eager::Eager;
pub use function::{BatchChecks, PayloadCheck, StageFunction, TrackedOutput};
pub(super) use recompute::Recompute;
