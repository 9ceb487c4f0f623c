//! What can go wrong on a link: each error names the rank that waited, its peer, and what was waited for.

use super::WireError;
use std::time::Instant;

/// What a failing rank tells the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The rank that failed.
    pub rank: usize,
    /// What happened, naming stage, microbatch and operation where there is one.
    pub message: String,
}

/// Why a link could not do what it was asked.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LinkError {
    /// Another rank failed.
    #[error("rank {} failed: {}", .0.rank, .0.message)]
    Peer(Failure),
    /// The deadline passed.
    #[error(
        "rank {rank} waited {seconds:.1} s for {what} from rank {peer}, which {peer_state}; look there first, or raise the deadline"
    )]
    Deadline {
        /// The rank that waited.
        rank: usize,
        /// The rank it waited for.
        peer: usize,
        /// What it waited for.
        what: String,
        /// How long.
        seconds: f64,
        /// What the other rank was last seen doing.
        peer_state: String,
    },
    /// Messages came in another order than the plan says.
    #[error("rank {rank} expected {expected} from rank {peer}, but {got} came; do both ranks run the same plan?")]
    Order {
        /// The rank that received.
        rank: usize,
        /// The rank that sent.
        peer: usize,
        /// What the plan says.
        expected: String,
        /// What came.
        got: String,
    },
    /// What came is no message, or what is to go cannot be one.
    #[error("rank {rank}, message from or to rank {peer}: {source}")]
    Wire {
        /// This rank.
        rank: usize,
        /// The rank at the other end.
        peer: usize,
        /// What is wrong.
        source: WireError,
    },
    /// A value that was gathered cannot be encoded, or what a rank sent is no such value.
    #[error("rank {rank} cannot use what rank {peer} gave to a gather ({message}); do all ranks run the same build?")]
    Gather {
        /// This rank.
        rank: usize,
        /// The rank whose value it is.
        peer: usize,
        /// What the encoding says.
        message: String,
    },
    /// The transport under the link has ended.
    #[error("rank {rank}: the link is closed: {message}")]
    Closed {
        /// This rank.
        rank: usize,
        /// Why.
        message: String,
    },
    /// Members of a group sent lists that do not fit each other.
    #[error("rank {rank} and rank {peer} hold different lists of parameters: {reason}")]
    Lists {
        /// The rank that received.
        rank: usize,
        /// The rank that sent.
        peer: usize,
        /// What does not fit.
        reason: String,
    },
    /// Ranks form different groups.
    #[error("rank {rank} and rank {peer} form different groups; all ranks must give `form_groups` the same list")]
    Groups {
        /// This rank.
        rank: usize,
        /// The first rank with another list.
        peer: usize,
    },
    /// A group that was not formed, or that the two ranks are not both in.
    #[error("there is no group {group} with rank {rank} and rank {other} in it; form it with `form_groups` first")]
    NoSuchGroup {
        /// This rank.
        rank: usize,
        /// The group's place in the list that was formed.
        group: usize,
        /// The rank at the other end.
        other: usize,
    },
    /// A rank that does not exist.
    #[error("there is no rank {rank}: the link has {ranks}")]
    NoSuchRank {
        /// The rank asked for.
        rank: usize,
        /// How many there are.
        ranks: usize,
    },
}

impl LinkError {
    /// The same error of a wait that began sooner than its last part.
    pub(crate) fn since(self, began: Instant) -> Self {
        match self {
            LinkError::Deadline { rank, peer, what, peer_state, .. } => {
                LinkError::Deadline { rank, peer, what, seconds: began.elapsed().as_secs_f64(), peer_state }
            }
            other => other,
        }
    }
}
