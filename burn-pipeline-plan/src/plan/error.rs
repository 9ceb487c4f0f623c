//! The error type of plans: their placements, skip edges, rows and text forms.

use super::skip_edge::SkipEdge;
use super::stage_id::StageId;
use super::task::Task;

/// Why a value is not a valid plan or part of a plan.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain variants and fields")]
pub enum PlanError {
    #[error("a placement needs at least one rank and one stage, got {ranks} ranks and {stages} stages")]
    Empty { ranks: usize, stages: usize },
    #[error("{stages} stages on {ranks} ranks: a plan holds at most 65535 of each")]
    TooLarge { ranks: usize, stages: usize },
    #[error("a placement has one route, or two of equal length; got lengths {lengths:?}")]
    RouteLengths { lengths: Vec<usize> },
    #[error("stage {stage} is placed on rank {rank}, but there are only {ranks} ranks")]
    NoSuchRank { stage: StageId, rank: usize, ranks: usize },
    #[error("ranks {first} and {second} both run stage {stage}; place each stage on one rank")]
    TwoRanks { stage: StageId, first: usize, second: usize },
    #[error("no rank runs stage {stage}, but the plan has {stages} stages per route")]
    MissingStage { stage: StageId, stages: usize },
    #[error("the plan has {rows} rows, but its placement has {ranks} ranks; write one row per rank")]
    Rows { rows: usize, ranks: usize },
    #[error("the plan gives {counts} microbatch counts, but its placement has {routes} routes")]
    Routes { counts: usize, routes: usize },
    #[error(
        "the plan counts {microbatches} microbatches on a route; at most {} can be numbered",
        Task::MAX_MICROBATCHES
    )]
    TooManyMicrobatches { microbatches: usize },
    #[error("the plan has no microbatch on any route; a step needs at least one")]
    NoMicrobatch,
    /// A stored plan trains from a stage that it does not have.
    #[error("the plan trains from stage {first} on, but it has {stages} stages per route")]
    FirstTrained { first: usize, stages: usize },
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
