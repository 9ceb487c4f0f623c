//! The error of plans: their placements, skip edges, rows and texts.

use super::skips::SkipEdge;
use super::stage_id::StageId;
use super::task::Task;

/// Why something is not a plan, or not a part of one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A placement has no rank or no stage.
    #[error("a placement needs at least one rank and one stage, got {ranks} ranks and {stages} stages")]
    Empty {
        /// Ranks asked for.
        ranks: usize,
        /// Stages a replica.
        stages: usize,
    },
    /// A placement has more stages or ranks than an action can name.
    #[error("{stages} stages on {ranks} ranks: a plan holds at most 65535 of each")]
    TooLarge {
        /// Ranks asked for.
        ranks: usize,
        /// Stages a replica.
        stages: usize,
    },
    /// A placement has a number of routes other than one or two, or two of unequal length.
    #[error("a placement has one route, or two of equal length; got lengths {lengths:?}")]
    RouteLengths {
        /// Stages of each route.
        lengths: Vec<usize>,
    },
    /// A stage is mapped to a rank that does not exist.
    #[error("stage {stage} is placed on rank {rank}, but there are only {ranks} ranks")]
    NoSuchRank {
        /// The stage.
        stage: StageId,
        /// The rank given for it.
        rank: usize,
        /// How many ranks there are.
        ranks: usize,
    },
    /// Two ranks name the same stage.
    #[error("stage {stage} is run by rank {first} and by rank {second}; a stage lives on one rank")]
    TwoRanks {
        /// The stage.
        stage: StageId,
        /// One rank.
        first: usize,
        /// The other.
        second: usize,
    },
    /// No rank names a stage between 0 and the last one.
    #[error("stage {stage} is run by no rank, though the plan has {stages} stages a replica")]
    MissingStage {
        /// The stage.
        stage: StageId,
        /// Stages a replica.
        stages: usize,
    },
    /// The number of rows is not the number of ranks.
    #[error("the plan has {rows} rows, but its placement has {ranks} ranks; write one row a rank")]
    Rows {
        /// Rows given.
        rows: usize,
        /// Ranks of the placement.
        ranks: usize,
    },
    /// The number of microbatch counts is not the number of routes.
    #[error("the plan gives {counts} microbatch counts, but its placement has {routes} routes")]
    Routes {
        /// Counts given.
        counts: usize,
        /// Routes of the placement.
        routes: usize,
    },
    /// A route has more microbatches than an action can name.
    #[error(
        "the plan counts {microbatches} microbatches on a route; at most {} can be numbered",
        Task::MAX_MICROBATCHES
    )]
    TooManyMicrobatches {
        /// Microbatches of the route.
        microbatches: usize,
    },
    /// No route has a microbatch.
    #[error("the plan has no microbatch on any route; a step needs at least one")]
    NoMicrobatch,
    /// A skip edge is not valid.
    #[error("the edge {edge} {reason}")]
    Skip {
        /// The edge.
        edge: SkipEdge,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// A text is not an action.
    #[error(
        "{}`{text}` is not an action: {reason}; write [stage][operation][microbatch], e.g. 2F0, 1UNSHARD, '3SEND_F1 or (0F7;7B3)OVERLAP_F_B",
        cell.map_or(String::new(), |(line, cell)| format!("line {line}, cell {cell}: "))
    )]
    Action {
        /// The line of a CSV text and the cell within it, both from 1.
        cell: Option<(usize, usize)>,
        /// The text that was refused.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
}
