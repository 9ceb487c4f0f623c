//! The error type of plans: their placements, skip edges, rows and text forms.

use super::skip_edge::SkipEdge;
use super::stage_id::StageId;
use super::task::Task;

/// Why a value is not a valid plan or part of a plan.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum PlanError {
    /// A placement has no rank or no stage.
    #[error("a placement needs at least one rank and one stage, got {ranks} ranks and {stages} stages")]
    Empty { ranks: usize, stages: usize },
    /// A placement has more stages or ranks than an action can name.
    #[error("{stages} stages on {ranks} ranks: a plan holds at most 65535 of each")]
    TooLarge { ranks: usize, stages: usize },
    /// A placement has a number of routes other than one or two, or two of unequal length.
    #[error("a placement has one route, or two of equal length; got lengths {lengths:?}")]
    RouteLengths { lengths: Vec<usize> },
    /// A stage is mapped to a rank that does not exist.
    #[error("stage {stage} is placed on rank {rank}, but there are only {ranks} ranks")]
    NoSuchRank { stage: StageId, rank: usize, ranks: usize },
    /// Two ranks name the same stage.
    #[error("ranks {first} and {second} both run stage {stage}; place each stage on one rank")]
    TwoRanks { stage: StageId, first: usize, second: usize },
    /// No rank names a stage between 0 and the last one.
    #[error("no rank runs stage {stage}, but the plan has {stages} stages per route")]
    MissingStage { stage: StageId, stages: usize },
    /// The number of rows is not the number of ranks.
    #[error("the plan has {rows} rows, but its placement has {ranks} ranks; write one row per rank")]
    Rows { rows: usize, ranks: usize },
    /// The number of microbatch counts is not the number of routes.
    #[error("the plan gives {counts} microbatch counts, but its placement has {routes} routes")]
    Routes { counts: usize, routes: usize },
    /// A route has more microbatches than an action can name.
    #[error(
        "the plan counts {microbatches} microbatches on a route; at most {} can be numbered",
        Task::MAX_MICROBATCHES
    )]
    TooManyMicrobatches { microbatches: usize },
    /// No route has a microbatch.
    #[error("the plan has no microbatch on any route; a step needs at least one")]
    NoMicrobatch,
    /// A stored plan trains from a stage that it does not have.
    #[error("the plan trains from stage {first} on, but it has {stages} stages per route")]
    FirstTrained { first: usize, stages: usize },
    /// A skip edge is not valid.
    #[error("the edge {edge} {reason}")]
    Skip { edge: SkipEdge, reason: String },
    /// A text is not an action. For CSV, `cell` is the line and the cell within it, both from 1.
    #[error(
        "{}`{text}` is not an action: {reason}; write [stage][operation][microbatch], \
         e.g. 2F0, 1UNSHARD, '3SEND_F1 or (0F7;7B3)OVERLAP_F_B",
        cell.map_or(String::new(), |(line, cell)| format!("line {line}, cell {cell}: "))
    )]
    Action { cell: Option<(usize, usize)>, text: String, reason: &'static str },
}

crate::debug_as_text!(PlanError);
