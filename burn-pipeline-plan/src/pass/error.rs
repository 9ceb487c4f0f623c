//! The error type of passes.

use crate::cost::ProfileError;
use crate::plan::{Action, CheckError, CheckOptions, Plan};
use crate::simulate::SimulateError;

/// Why a pass cannot rewrite a plan. `rank` and `step` (the index of the cell in the rank's row) are the place, and
/// `action` is the cell.
#[derive(Clone, PartialEq, thiserror::Error)]
#[allow(
    missing_docs,
    reason = "rank, step and action mean the same in every variant, and the messages explain the others"
)]
pub enum PassError {
    /// A cell needs more unsharded stages at once than allowed.
    #[error(
        "rank {rank}, step {step}: {action} needs {needs} stages at once, above the bound of {max_active} \
         unsharded stages; raise the bound"
    )]
    TooFewActive { rank: usize, step: usize, action: Action, needs: usize, max_active: usize },
    /// Two plans differ in their cells, although one should be the other after moves.
    #[error("rank {rank}: its rows in the two plans have different cells; pass a plan and the result of passes on it")]
    OtherCells { rank: usize },
    /// A plan has no such stage to train from, or no longer its backward.
    #[error(
        "the plan cannot train from stage {first} on: it has {stages} stages, of which those from {from} on have \
         backwards; build it anew for that stage"
    )]
    TrainsFrom { first: usize, from: usize, stages: usize },
    /// A plan with a vocabulary-parallel embedding cannot train from a later stage on.
    #[error(
        "the plan cannot train from stage {first} on: its vocabulary-parallel embedding needs the gradient of the \
         first stage's input; run `Plan::train_from` on a plan without one"
    )]
    EmbeddingGradient { first: usize },
    /// This plan cannot be made vocabulary parallel.
    #[error("this plan cannot be made vocabulary parallel: {reason}")]
    Vocabulary { reason: &'static str },
    /// An overlap pass was given a vocabulary-parallel plan, whose collectives it cannot move.
    #[error(
        "the plan is vocabulary parallel, and overlap passes cannot move transfers past its collectives; \
         leave out these passes"
    )]
    OverlapVocabulary,
    /// Padding was requested for a plan with transfers; padded rows have none.
    #[error("the plan has transfers, which padded rows do not; pad it before `Plan::with_transfers`")]
    Lowered,
    /// An overlap pass needs sends and receives to move, but the plan has none.
    #[error("the plan is not lowered; run `Plan::with_transfers` first")]
    NotLowered,
    /// The plan cannot run; for an overlap pass, under the transport of its options.
    #[error(transparent)]
    Check(#[from] Box<CheckError>),
    /// A pass cannot follow a plan that passes [`Plan::check`]: a bug in this library.
    #[error("a pass cannot follow the plan, although it passes `Plan::check`; please report the plan")]
    Unexplained,
    /// An overlap pass was given a plan that cannot be simulated.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
    /// The profile does not fit the plan.
    #[error(transparent)]
    Profile(#[from] ProfileError),
}

crate::debug_as_text!(PassError);

impl PassError {
    /// The refusal of a plan that a pass cannot follow. `check` finds the fault: what a cell needs before a pass can
    /// place it, `check` requires too.
    #[cold]
    pub(super) fn refusal(plan: &Plan) -> Self {
        plan.clone().check(&CheckOptions::default()).err().map_or(Self::Unexplained, Self::Check)
    }
}
