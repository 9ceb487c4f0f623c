//! Why a plan could not be simulated.

use crate::cost::ProfileError;
use crate::plan::waiting::listed;
use crate::plan::{Action, Waiting};

/// Why a plan could not be simulated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SimulateError {
    /// The profile does not fit the plan.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The ranks wait for each other, or for a task that no rank runs.
    #[error(
        "deadlock: {}; reorder the actions so that each one's input is made before it is needed, or check the plan for the cycle",
        listed(waiting)
    )]
    Deadlock {
        /// Every rank that has not finished its row, and what it waits for.
        waiting: Vec<Waiting>,
    },
    /// An action names a stage, microbatch or edge that its plan does not have.
    #[error("rank {rank}, step {step} ({action}): {reason}")]
    Foreign {
        /// The rank.
        rank: usize,
        /// Index of the action in the rank's row, from 0.
        step: usize,
        /// The action.
        action: Action,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The plan counts far more microbatches than it has actions.
    #[error(
        "the plan counts {microbatches} microbatches on {stages} stages, but holds only {actions} actions; every stage has to run every microbatch"
    )]
    Sparse {
        /// The largest microbatch count of a route.
        microbatches: usize,
        /// Stages over all replicas.
        stages: usize,
        /// Actions of the plan.
        actions: usize,
    },
    /// The unit-step simulation knows only computations and transfers.
    #[error(
        "rank {rank}: the unit-step simulation cannot run {action}; it knows F, I, W, B, sends and receives, so lower the plan without sharding, strip its waits and split fused actions"
    )]
    Unsupported {
        /// The rank.
        rank: usize,
        /// The action.
        action: Action,
    },
}
