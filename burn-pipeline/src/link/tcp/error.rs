//! Why processes could not be connected.

use std::io::ErrorKind;

/// Why processes could not be connected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TcpError {
    /// The rank is not below the number of ranks.
    #[error("rank {rank} is not one of {ranks} rank(s), counted from 0")]
    OutOfRange {
        /// The rank.
        rank: usize,
        /// The number of ranks.
        ranks: usize,
    },
    /// Rank 0 cannot listen.
    #[error("rank 0 cannot listen at port {port} ({error}); set MASTER_PORT to a free one, the same for all ranks")]
    Port {
        /// The port.
        port: u16,
        /// The error of the system.
        error: ErrorKind,
    },
    /// Ranks are missing.
    #[error("rank(s) {missing:?} did not connect to {}:{} in time; was every rank started, with the same MASTER_ADDR and MASTER_PORT?", at.0, at.1)]
    Missing {
        /// The missing ranks.
        missing: Vec<usize>,
        /// Where they were expected.
        at: (String, u16),
    },
    /// A rank cannot be reached.
    #[error("rank {rank} cannot be reached at {}:{} ({error}); is it running, and is the port open to this machine?", at.0, at.1)]
    Unreachable {
        /// The rank.
        rank: usize,
        /// Where it should be.
        at: (String, u16),
        /// The last error of the system.
        error: ErrorKind,
    },
    /// A process is not one of the ranks.
    #[error("a process that claims to be rank {rank} cannot join: {reason}")]
    Stranger {
        /// The rank that it claims to be.
        rank: usize,
        /// Why it cannot join.
        reason: String,
    },
    /// Rank 0 refused the connection.
    #[error("rank 0 refused the connection: {0}")]
    Refused(String),
    /// A connection broke before all ranks were connected.
    #[error(
        "the connection to rank {rank} broke before all ranks were connected ({error}); look at that rank's own message"
    )]
    Broken {
        /// The rank at the other end (this one, if it could not listen).
        rank: usize,
        /// The error of the system.
        error: ErrorKind,
    },
    /// The link over which addresses were exchanged failed.
    #[error("addresses could not be exchanged: {0}")]
    Link(String),
    /// A thread cannot be started.
    #[error("a thread that serves the connections cannot be started ({0})")]
    Thread(ErrorKind),
}
