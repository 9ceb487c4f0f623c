//! The error of maps from stages to ranks.

use super::stage_id::StageId;

/// Why a stage-to-rank map is not a placement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// There is no rank or no stage.
    #[error("a placement needs at least one rank and one stage, got {ranks} ranks and {stages} stages")]
    Empty {
        /// Ranks asked for.
        ranks: usize,
        /// Stages a replica.
        stages: usize,
    },
    /// More stages or ranks than an action can name.
    #[error("{stages} stages on {ranks} ranks: a plan holds at most 65535 of each")]
    TooLarge {
        /// Ranks asked for.
        ranks: usize,
        /// Stages a replica.
        stages: usize,
    },
    /// A replica count other than one or two, or replicas of unequal length.
    #[error("a placement has one route, or two of equal length; got lengths {lengths:?}")]
    Routes {
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
    Missing {
        /// The stage.
        stage: StageId,
        /// Stages a replica.
        stages: usize,
    },
}
