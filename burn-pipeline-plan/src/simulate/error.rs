//! Why a plan could not be simulated.

use crate::cost::ProfileError;
use crate::plan::waiting::listed;
use crate::plan::{Action, Waiting};
use crate::trace::Track;

/// Why a plan could not be simulated. `rank` and `step` (the index of the action in the rank's row, from 0) locate the
/// fault.
#[derive(Clone, PartialEq, thiserror::Error)]
#[allow(
    missing_docs,
    reason = "rank, step and action mean the same in every variant, and messages explain the other fields"
)]
pub enum SimulateError {
    /// The profile does not fit the plan.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The ranks wait for each other, or for a task that no rank runs. `waiting` lists all ranks that have not finished
    /// their rows. `so_far` has the actions that ran before the deadlock, in simulated seconds (one second per step for
    /// [`unit_steps()`](super::unit_steps())).
    #[error(
        "deadlock: {}; insert tasks that no rank runs, and reorder the actions so that each one's input is made \
         before it is needed (`Plan::check` says which)",
        listed(waiting)
    )]
    Deadlock { waiting: Vec<Waiting>, so_far: Box<Track> },
    /// An action names a stage, microbatch or edge that its plan does not have.
    #[error("rank {rank}, step {step} ({action}): {reason}")]
    Foreign { rank: usize, step: usize, action: Action, reason: &'static str },
    /// The plan declares far more microbatches (on its largest route) than it has actions.
    #[error(
        "the plan counts {microbatches} microbatches on {stages} stages, but holds only {actions} actions; \
         every stage has to run every microbatch"
    )]
    Sparse { microbatches: usize, stages: usize, actions: usize },
    /// The unit-step simulation supports only computations and transfers.
    #[error(
        "rank {rank}: the unit-step simulation cannot run {action}; it knows F, I, W, B, sends and receives, \
         so lower the plan without sharding, strip its waits and split fused actions"
    )]
    Unsupported { rank: usize, action: Action },
}

crate::debug_as_text!(SimulateError);
