//! Why a pass refuses a plan.

use crate::plan::{Action, Task};

/// Ranks that an error's message lists before it counts the rest.
const LISTED: usize = 8;

/// A rank that waits while transfers are placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stuck {
    /// The rank.
    pub rank: usize,
    /// Index of the cell in the rank's row.
    pub step: usize,
    /// The cell.
    pub action: Action,
    /// The task that it waits for.
    pub needs: Task,
}

/// Why a pass cannot rewrite a plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PassError {
    /// Some ranks wait for values that are never computed.
    #[error(
        "transfers cannot be placed: {}; reorder these rows so that what is needed is computed first",
        listed(stuck)
    )]
    Stuck {
        /// Every rank that has not reached the end of its row, in rank order.
        stuck: Vec<Stuck>,
    },
    /// A rank runs a stage that the placement puts on another rank, or on none.
    #[error(
        "rank {rank}, step {step}: {action} runs on a stage that {}; move it, or change the placement",
        placed.map_or("no rank holds".to_owned(), |r| format!("rank {r} holds"))
    )]
    Misplaced {
        /// The rank.
        rank: usize,
        /// Index of the cell in the rank's row.
        step: usize,
        /// The cell.
        action: Action,
        /// The rank that holds the stage, if any does.
        placed: Option<usize>,
    },
    /// A microbatch number is beyond its route's count.
    #[error("rank {rank}, step {step}: {action} is beyond the route's {microbatches} microbatches")]
    NoSuchMicrobatch {
        /// The rank.
        rank: usize,
        /// Index of the cell in the rank's row.
        step: usize,
        /// The cell.
        action: Action,
        /// Microbatches of the route.
        microbatches: usize,
    },
    /// The plan names far more microbatches than it has cells for, so that a dense table would be far larger than the plan.
    #[error(
        "the plan numbers {pairs} pairs of stage and microbatch but runs only {cells} cells; write the missing ones"
    )]
    Sparse {
        /// Pairs of stage and microbatch that a whole step has.
        pairs: usize,
        /// Cells in all rows.
        cells: usize,
    },
    /// A cell needs more stages at once than may be unsharded.
    #[error(
        "rank {rank}, step {step}: {action} works on {needs} stages at once, above the bound of {max_active} unsharded stages; raise it"
    )]
    TooFewActive {
        /// The rank.
        rank: usize,
        /// Index of the cell in the rank's row.
        step: usize,
        /// The cell.
        action: Action,
        /// Stages that the cell works on.
        needs: usize,
        /// The bound given.
        max_active: usize,
    },
}

fn listed(stuck: &[Stuck]) -> String {
    let one =
        |s: &Stuck| format!("rank {} is stuck at step {} ({}), which waits for {}", s.rank, s.step, s.action, s.needs);
    let mut text = stuck.iter().take(LISTED).map(one).collect::<Vec<_>>().join("; ");
    if stuck.len() > LISTED {
        text += &format!("; and {} more ranks are stuck", stuck.len() - LISTED);
    }
    text
}
