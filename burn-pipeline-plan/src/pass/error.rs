//! Why a pass refuses a plan.

use crate::cost::ProfileError;
use crate::plan::waiting::listed;
use crate::plan::{Action, CheckError, Waiting};
use crate::simulate::SimulateError;

/// Why a pass cannot rewrite a plan. `rank` and `step` (the index of the cell in the rank's row) give the place, and `action`
/// is the cell.
#[derive(Clone, PartialEq, thiserror::Error)]
#[allow(
    missing_docs,
    reason = "rank, step and action mean the same in every variant, and messages say what the rest is"
)]
pub enum PassError {
    /// Some ranks wait for values that are never computed: all that have not reached the ends of their rows, in rank order.
    #[error(
        "these ranks would wait for ever: {}; reorder these rows so that what is needed is computed first",
        listed(waiting)
    )]
    Stuck { waiting: Vec<Waiting> },
    /// A rank runs a stage that the placement puts on another rank, or on none.
    #[error(
        "rank {rank}, step {step}: {action} runs on a stage that {}; move it, or change the placement",
        placed.map_or("no rank holds".to_owned(), |r| format!("rank {r} holds"))
    )]
    Misplaced { rank: usize, step: usize, action: Action, placed: Option<usize> },
    /// A microbatch number is beyond its route's count.
    #[error("rank {rank}, step {step}: {action} is beyond the route's {microbatches} microbatches")]
    NoSuchMicrobatch { rank: usize, step: usize, action: Action, microbatches: usize },
    /// The plan names far more microbatches than it has cells for, so that a dense table would be far larger than the plan.
    #[error(
        "the plan numbers {pairs} pairs of stage and microbatch but runs only {cells} cells; write the missing ones"
    )]
    Sparse { pairs: usize, cells: usize },
    /// A cell needs more stages at once than may be unsharded.
    #[error(
        "rank {rank}, step {step}: {action} works on {needs} stages at once, above the bound of {max_active} unsharded stages; raise it"
    )]
    TooFewActive { rank: usize, step: usize, action: Action, needs: usize, max_active: usize },
    /// Two plans of which one is to be the other after moves have other cells.
    #[error("rank {rank}: its row does not have the same cells in both plans; give a plan and what passes made of it")]
    OtherCells { rank: usize },
    /// The vocabulary of this plan cannot be spread.
    #[error("the vocabulary of this plan cannot be spread over its ranks: {reason}")]
    Spread { reason: &'static str },
    /// An overlap pass was given a plan that spreads the vocabulary, whose collectives it does not know how to move.
    #[error("the plan spreads the vocabulary, which overlap passes do not move transfers around; leave them out")]
    OverlapSpread,
    /// Rows that are locked to steps have no transfers.
    #[error("the plan has transfers, which rows that are locked to steps do not; pad it before `Plan::with_transfers`")]
    Lowered,
    /// An overlap pass needs sends and receives to move, and the plan has none.
    #[error("the plan is not lowered; run `Plan::with_transfers` first")]
    NotLowered,
    /// An overlap pass was given a plan that cannot be run under the transport of its options.
    #[error(transparent)]
    Check(#[from] Box<CheckError>),
    /// An overlap pass was given a plan that cannot be simulated.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
    /// The profile does not fit the plan.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The running memory count differs from a recount: a fault of this library.
    #[error(
        "rank {rank}: after {action} was passed, the running memory count differs from a recount; please report the plan"
    )]
    Recount { rank: usize, action: Action },
}

crate::debug_as_text!(PassError);
