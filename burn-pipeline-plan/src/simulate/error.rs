//! Why a plan could not be simulated.

use crate::cost::ProfileError;
use crate::plan::{Action, Task};
use std::fmt::Write;

/// A rank that can never run its next action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    /// The rank.
    pub rank: usize,
    /// Index of the action in the rank's row, from 0.
    pub step: usize,
    /// The action.
    pub action: Action,
    /// The task that it waits for.
    pub awaits: Task,
    /// The rank that would have to run that task.
    pub on: usize,
}

/// Why a plan could not be simulated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SimulateError {
    /// The profile does not fit the plan.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The ranks wait for each other, or for a task that no rank runs.
    #[error(
        "deadlock: {}; reorder the actions so that each one's input is made before it is needed, or check the plan for the cycle",
        list(blocked)
    )]
    Deadlock {
        /// Every rank that has not finished its row, and what it waits for.
        blocked: Vec<Blocked>,
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

/// Blocked ranks that an error message lists.
const LISTED: usize = 8;

fn list(blocked: &[Blocked]) -> String {
    let mut text = String::new();
    for (i, b) in blocked.iter().take(LISTED).enumerate() {
        let join = if i > 0 { ", " } else { "" };
        // Writing into a string cannot fail.
        let _ = write!(
            text,
            "{join}rank {} stands at step {} ({}) and waits for {} on rank {}",
            b.rank, b.step, b.action, b.awaits, b.on
        );
    }
    if blocked.len() > LISTED {
        let _ = write!(text, ", and {} more", blocked.len() - LISTED);
    }
    text
}
