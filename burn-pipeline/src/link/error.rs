//! Errors of links. An error of a wait names the rank that waited, its peer, and what it waited for.

use super::wire_error::WireError;
use crate::plan::CollectiveError;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// The failure of a rank, as all others are informed of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The rank that failed.
    pub rank: usize,
    /// What happened, with the stage, microbatch and operation if there is one.
    pub message: String,
}

/// What the others are told of a rank whose link is dropped by a panic.
pub(crate) const PANICKED: &str = "its program panicked outside of a step; look at that rank's own output";

/// What a rank waits for in [`Link::recover`](super::Link::recover).
pub(super) const AGREEMENT: &str = "its agreement to go on after a failure";

/// Why an operation of a link failed. `rank` is the one that reports it, `peer` the one at the other end.
#[derive(Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum LinkError {
    /// Another rank failed.
    #[error("rank {} failed: {}", .0.rank, .0.message)]
    Peer(Failure),
    /// Another rank's call failed, and the link is sound: all ranks may go on after [`Link::recover`](super::Link::recover).
    #[error("rank {} failed: {}", .0.rank, .0.message)]
    Interrupted(Failure),
    /// The deadline passed.
    #[error(
        "rank {rank} waited {seconds:.1} s for {what} from rank {peer}, which {peer_state}; look there first, or raise the deadline"
    )]
    Deadline { rank: usize, peer: usize, what: String, seconds: f64, peer_state: String },
    /// The other rank has closed its end of the link, so that what this one waits for cannot come any more.
    #[error(
        "rank {rank} waits for {what} from rank {peer}, which has left the job (its pipeline was dropped); look at that rank's own output"
    )]
    Left { rank: usize, peer: usize, what: String },
    /// Messages arrived in another order than the plan has.
    #[error("rank {rank} expected {expected} from rank {peer}, but {got} came; do both ranks run the same plan?")]
    Order { rank: usize, peer: usize, expected: String, got: String },
    /// A message could not be read or written.
    #[error("rank {rank}, message from or to rank {peer}: {source}")]
    Wire { rank: usize, peer: usize, source: WireError },
    /// A value for a gather cannot be encoded, or the bytes of a rank are no such value.
    #[error("rank {rank} cannot use what rank {peer} gave to a gather ({message}); do all ranks run the same build?")]
    Gather { rank: usize, peer: usize, message: String },
    /// The transport under the link has ended.
    #[error("rank {rank}: the link is closed: {message}")]
    Closed { rank: usize, message: String },
    /// Members of a group gave lists that do not match.
    #[error("rank {rank} and rank {peer} hold different lists of parameters: {reason}")]
    Lists { rank: usize, peer: usize, reason: String },
    /// Members of the group that holds a stage are in different collectives.
    #[error(
        "rank {rank} is at {ours}, and rank {peer}, which holds the same stage with it, is at {theirs}; the ranks of a group must call the same collectives in the same order, with the same shapes"
    )]
    Members { rank: usize, peer: usize, ours: String, theirs: String },
    /// Data-parallel replicas of a stage that exchange tensors are in different exchanges.
    #[error(
        "rank {rank} is at {ours}, and rank {peer}, a data-parallel replica of its stages, is at {theirs}; replicas must call the same exchanges in the same order, with the same shapes: with a capacity their microbatches need equally many samples, so give batches a number of samples that all microbatches of all replicas share evenly"
    )]
    Replicas { rank: usize, peer: usize, ours: String, theirs: String },
    /// The collectives that the holders of a captured stage recorded are not met in one order. `ranks` are the holders that `source` names.
    #[error("ranks {ranks:?} of the job recorded collectives that are not met: {source}")]
    Collectives { rank: usize, ranks: Vec<usize>, source: Box<CollectiveError> },
    /// Ranks form different groups.
    #[error("rank {rank} and rank {peer} form different groups; all ranks must give `form_groups` the same list")]
    Groups { rank: usize, peer: usize },
    /// The group was not formed, or the two ranks are not both members.
    #[error("there is no group {group} with rank {rank} and rank {other} in it; form it with `form_groups` first")]
    NoSuchGroup { rank: usize, group: usize, other: usize },
    /// The rank does not exist.
    #[error("there is no rank {rank}: the link has {ranks}")]
    NoSuchRank { rank: usize, ranks: usize },
}

burn_pipeline_plan::debug_as_text!(LinkError);

impl LinkError {
    /// Returns true if it only repeats the failure of another rank, of which all ranks know.
    pub(crate) fn is_echo(&self) -> bool {
        matches!(self, LinkError::Peer(_) | LinkError::Interrupted(_))
    }

    /// Returns true if the link is sound after it: user code met others in the wrong place, or another rank's call failed so.
    pub(crate) fn leaves_link_sound(&self) -> bool {
        use LinkError::{Collectives, Interrupted, Members, Replicas};
        matches!(self, Interrupted(_) | Members { .. } | Replicas { .. } | Collectives { .. })
    }

    /// The same error with the time since `began`, for a wait of several parts.
    pub(crate) fn since(self, began: Instant) -> Self {
        match self {
            LinkError::Deadline { rank, peer, what, peer_state, .. } => {
                LinkError::Deadline { rank, peer, what, seconds: began.elapsed().as_secs_f64(), peer_state }
            }
            other => other,
        }
    }
}
