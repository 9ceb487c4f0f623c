//! Ranks as processes over TCP: nothing but the network is needed, no MPI.
//!
//! Guarantees: a send never blocks the rank that sends; messages of one rank to another keep their order; every wait
//! ends at its deadline, and says of every rank whether it still answers; a rank that fails tells all others at once,
//! and one whose connection ends without a goodbye (killed, or its machine rebooted) is named at once.
//!
//! 1. The ranks meet (`meeting.rs`): at rank 0's address, as launchers give it, or over another link.
//! 2. Between every two ranks there is one connection, with a thread at each end that reads and one that writes
//!    (`mesh.rs`): messages travel while ranks compute.
//! 3. A message is its frame and the bytes of its tensors, as over MPI. Gathers, questions and failures are letters.
//!
//! It is meant for small jobs without MPI, and as the way on which links between GPUs exchange everything but tensors
//! (`nccl/`). Data are neither encrypted nor authenticated: use it within one machine or a network that is trusted.

mod link;
mod meeting;
mod mesh;

pub use link::Post;
pub use link::TcpLink;
pub use meeting::Place;
pub use meeting::{Connections, at as meet_at, by_link as meet_by_link};
pub use mesh::{Heard, Mesh, Packet, Sink};

use std::io::ErrorKind;

/// Why ranks did not find each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TcpError {
    /// The rank is not below the number of ranks.
    #[error("rank {rank} is not one of {ranks} rank(s), counted from 0")]
    OutOfRange {
        /// The rank.
        rank: usize,
        /// How many there are.
        ranks: usize,
    },
    /// Rank 0 cannot listen.
    #[error("rank 0 cannot listen at port {port} ({error}); set MASTER_PORT to a free one, the same for all ranks")]
    Port {
        /// The port.
        port: u16,
        /// What the system said.
        error: ErrorKind,
    },
    /// Ranks did not come.
    #[error("rank(s) {missing:?} did not come in time to {}:{}; was every rank started, with the same MASTER_ADDR and MASTER_PORT?", at.0, at.1)]
    Missing {
        /// Who did not come.
        missing: Vec<usize>,
        /// Where to.
        at: (String, u16),
    },
    /// A rank cannot be reached.
    #[error("rank {rank} cannot be reached at {}:{} ({error}); is it running, and is the port open to this machine?", at.0, at.1)]
    Unreachable {
        /// Which.
        rank: usize,
        /// Where it should be.
        at: (String, u16),
        /// What the system said last.
        error: ErrorKind,
    },
    /// A process that does not belong to the others.
    #[error("a process that says it is rank {rank} cannot join: {reason}")]
    Stranger {
        /// Which rank it says it is.
        rank: usize,
        /// Why it cannot join.
        reason: String,
    },
    /// Rank 0 has ended the meeting.
    #[error("rank 0 has ended the meeting: {0}")]
    Refused(String),
    /// A connection broke during the meeting.
    #[error("the connection to rank {rank} broke while ranks met ({error}); look at that rank's own message")]
    Broken {
        /// The rank at the other end (this one, if it could not listen).
        rank: usize,
        /// What the system said.
        error: ErrorKind,
    },
    /// The link over which addresses were exchanged failed.
    #[error("addresses could not be exchanged: {0}")]
    Link(String),
    /// A thread cannot be started.
    #[error("a thread that serves the connections cannot be started ({0})")]
    Thread(ErrorKind),
}
