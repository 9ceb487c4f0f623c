//! The error type of passes.

use crate::cost::ProfileError;
use crate::plan::waiting::listed;
use crate::plan::{Action, CheckError, Plan, Waiting};
use crate::simulate::SimulateError;

/// Why a pass cannot rewrite a plan. `rank` and `step` (the index of the cell in the rank's row) are the place, and
/// `action` is the cell.
#[derive(Clone, PartialEq, thiserror::Error)]
#[allow(
    missing_docs,
    reason = "rank, step and action mean the same in every variant, and the messages explain the others"
)]
pub enum PassError {
    /// Some ranks wait for values that are never computed. Lists every rank that has not reached the end of its row, in
    /// rank order.
    #[error(
        "these ranks would wait forever: {}; reorder these rows so that needed values are computed first",
        listed(waiting)
    )]
    Stuck { waiting: Vec<Waiting> },
    /// A rank waits for a task that is in no row. `on` is the rank that would run it.
    #[error("{waiting}, which rank {} never runs; insert {} there", waiting.on, waiting.needs)]
    Missing { waiting: Waiting },
    /// A rank runs a stage that the placement puts on another rank, or on none.
    #[error(
        "rank {rank}, step {step}: {action} names a stage that {}; move it, or change the placement",
        placed.map_or("is on no rank".to_owned(), |r| format!("is on rank {r}"))
    )]
    Misplaced { rank: usize, step: usize, action: Action, placed: Option<usize> },
    /// A microbatch number is not below its route's count.
    #[error("rank {rank}, step {step}: {action} is beyond the route's {microbatches} microbatches")]
    NoSuchMicrobatch { rank: usize, step: usize, action: Action, microbatches: usize },
    /// The plan names far more microbatches than it has cells for, so a dense table would be far larger than the plan.
    #[error("the plan numbers {pairs} pairs of stage and microbatch but has only {cells} cells; add the missing cells")]
    Sparse { pairs: usize, cells: usize },
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
    /// An overlap pass was given a plan that cannot run under the transport of its options.
    #[error(transparent)]
    Check(#[from] Box<CheckError>),
    /// An overlap pass was given a plan that cannot be simulated.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
    /// The profile does not fit the plan.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The running memory count differs from a recount: a bug in this library.
    #[error(
        "rank {rank}: after moving past {action}, the running memory count differs from a recount; \
         please report the plan"
    )]
    Recount { rank: usize, action: Action },
}

crate::debug_as_text!(PassError);

impl PassError {
    /// The refusal of a plan whose ranks wait so.
    pub(super) fn stuck(plan: &Plan, waiting: Vec<Waiting>) -> Self {
        let absent = |waiting: &&Waiting| !plan.tasks(waiting.on).any(|task| task == waiting.needs);
        match waiting.iter().find(absent) {
            Some(&waiting) => Self::Missing { waiting },
            None => Self::Stuck { waiting },
        }
    }
}
