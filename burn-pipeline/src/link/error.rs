//! Errors of links. The error of a wait names the rank that waited, its peer, and what it waited for.
//!
//! Groups of ranks return the same type, with variants of their own: a link's own collectives find the same
//! differences between members ([`Collectives`](super::Collectives)), and a collective inside of a stage's code has one
//! way for all errors, which is to unwind with this type.

use super::header::Header;
use super::wire_error::WireError;
use burn_pipeline_plan::plan::CollectiveError;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// The failure of a rank, as all other ranks learn of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The rank that failed.
    pub rank: usize,
    /// What happened, with the stage, microbatch and operation if there is one.
    pub message: String,
}

impl Failure {
    /// The message without the rank that it begins with, for texts that name the rank already.
    fn told(&self) -> &str {
        self.message.strip_prefix(&format!("rank {}: ", self.rank)).unwrap_or(&self.message)
    }
}

/// The failure message of a rank whose link is dropped by a panic.
pub(crate) const PANICKED: &str = "its program panicked outside of a step; look at that rank's own output";

/// What a rank waits for in [`Link::recover`](super::Link::recover).
pub(super) const AGREEMENT: &str = "its agreement to go on after a failure";

/// Why an operation of a link failed. `rank` reports the error, and `peer` is the rank at the other end.
#[derive(Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum LinkError {
    /// Another rank failed.
    #[error("rank {} failed: {}", .0.rank, .0.told())]
    Peer(Failure),
    /// Another rank's call failed, but the link still works: all ranks may go on after
    /// [`Link::recover`](super::Link::recover).
    #[error("rank {} failed: {}", .0.rank, .0.told())]
    Interrupted(Failure),
    /// The deadline passed.
    #[error(
        "rank {rank} waited {seconds:.1} s for {what} from rank {peer}, which {peer_state}; \
         look at that rank first, or raise the timeout"
    )]
    Deadline { rank: usize, peer: usize, what: String, seconds: f64, peer_state: String },
    /// The other rank has closed its end of the link, so what this rank waits for cannot arrive.
    #[error(
        "rank {rank} waits for {what} from rank {peer}, which has left the job (its pipeline was dropped): \
         it failed, as its own output says, or made fewer calls than this one"
    )]
    Left { rank: usize, peer: usize, what: String },
    /// A message arrived that is not the next one of the plan.
    #[error(
        "rank {rank} expected {expected} from rank {peer}, but {got} came; \
         check that both ranks run the same plan"
    )]
    Order { rank: usize, peer: usize, expected: String, got: String },
    /// A message could not be made, for example because a tensor cannot be read from its device. Nothing was sent.
    #[error("rank {rank} sent no message to rank {peer}: {source}")]
    Unsent { rank: usize, peer: usize, source: WireError },
    /// A message could not be read.
    #[error("rank {rank}, message from or to rank {peer}: {source}")]
    Wire { rank: usize, peer: usize, source: WireError },
    /// A value of an all-gather cannot be encoded, or another rank's bytes cannot be decoded.
    #[error(
        "rank {rank} cannot decode rank {peer}'s value of an all-gather ({message}); \
         check that all ranks run the same build"
    )]
    Gather { rank: usize, peer: usize, message: String },
    /// The transport under the link has ended.
    #[error("rank {rank}: the link is closed: {message}")]
    Closed { rank: usize, message: String },
    /// Members of a group passed lists that do not match.
    #[error("rank {rank} and rank {peer} hold different lists of parameters: {reason}")]
    Lists { rank: usize, peer: usize, reason: String },
    /// Members of a tensor-parallel group are in different collectives.
    #[error(
        "rank {rank} is at {ours}, and rank {peer}, a member of the same group, is at {theirs}; \
         members must call the same collectives in the same order, with the same shapes"
    )]
    Members { rank: usize, peer: usize, ours: String, theirs: String },
    /// Data-parallel replicas of a stage that exchange tensors are in different exchanges.
    #[error(
        "rank {rank} is at {ours}, and rank {peer}, a data-parallel replica of its stages, is at {theirs}; \
         replicas must call the same exchanges in the same order, with the same shapes. With a capacity, \
         all microbatches of all replicas need equally many samples: choose a batch size that \
         divides evenly among them"
    )]
    Replicas { rank: usize, peer: usize, ours: String, theirs: String },
    /// The members of a captured stage recorded collectives in incompatible orders. `ranks` are the members
    /// that `source` names.
    #[error("ranks {ranks:?} of the job recorded collectives in incompatible orders: {source}")]
    Collectives { rank: usize, ranks: Vec<usize>, source: Box<CollectiveError> },
    /// The rank does not exist.
    #[error("there is no rank {rank}: the link has {ranks}")]
    NoSuchRank { rank: usize, ranks: usize },
}

burn_pipeline_plan::debug_as_text!(LinkError);

impl LinkError {
    /// Refuses a message from `peer` that is not the one that this rank expects.
    ///
    /// # Errors
    /// Returns [`LinkError::Order`].
    pub fn check_order(rank: usize, peer: usize, expected: Header, got: Header) -> Result<(), Self> {
        if expected == got {
            return Ok(());
        }
        Err(LinkError::Order { rank, peer, expected: expected.to_string(), got: got.to_string() })
    }

    /// Returns true if it only repeats the failure of another rank, which all ranks know.
    pub(crate) fn is_echo(&self) -> bool {
        matches!(self, LinkError::Peer(_) | LinkError::Interrupted(_))
    }

    /// Another rank's failure, which the link reports.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        match self {
            LinkError::Peer(failure) | LinkError::Interrupted(failure) => Some(failure),
            _ => None,
        }
    }

    /// Returns true if the link still works after it: members were in different collectives, another rank's call
    /// failed, or a message was not sent.
    pub(crate) fn leaves_link_sound(&self) -> bool {
        use LinkError::{Collectives, Interrupted, Members, Replicas, Unsent};
        matches!(self, Interrupted(_) | Unsent { .. } | Members { .. } | Replicas { .. } | Collectives { .. })
    }

    /// Returns the same error with the time since `began`, for a wait of several parts.
    pub(crate) fn since(self, began: Instant) -> Self {
        match self {
            LinkError::Deadline { rank, peer, what, peer_state, .. } => {
                LinkError::Deadline { rank, peer, what, seconds: began.elapsed().as_secs_f64(), peer_state }
            }
            other => other,
        }
    }
}
