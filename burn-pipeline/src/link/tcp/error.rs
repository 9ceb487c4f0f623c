//! Why processes could not be connected.

use std::io::{Error, ErrorKind};

/// Why processes could not be connected.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum TcpError {
    /// The rank is not below the number of ranks.
    #[error("rank {rank} is not one of {ranks} rank(s), counted from 0")]
    OutOfRange { rank: usize, ranks: usize },
    /// Rank 0 cannot listen.
    #[error("rank 0 cannot listen at {}:{} ({error}); {}", at.0, at.1, advice(*error))]
    Listen { at: (String, u16), error: ErrorKind },
    /// Processes of other machines are to join, but the job has no secret to recognise its ranks.
    #[error(
        "{}:{} is not a loopback address, and the job has no secret to recognise its ranks; set BURN_PIPELINE_SECRET \
         to the same long random text for all of them (`openssl rand -hex 32`), or choose `Admission::Anyone` if you \
         trust the whole network",
        at.0, at.1
    )]
    NoSecret { at: (String, u16) },
    /// The secret is empty, so anybody could prove it.
    #[error("the job's secret is empty; give all ranks the same long random text (`openssl rand -hex 32`)")]
    EmptySecret,
    /// The process that listens in a rank's place does not know the job's secret.
    #[error(
        "the process at {}:{}, where rank {rank} should be, does not know this rank's secret; set BURN_PIPELINE_SECRET \
         to the same text on all ranks",
        at.0, at.1
    )]
    Secret { rank: usize, at: (String, u16) },
    /// Ranks are missing.
    #[error(
        "rank(s) {missing:?} did not connect to {}:{} in time; check that every rank was started, with the same \
         MASTER_ADDR, MASTER_PORT and BURN_PIPELINE_SECRET{}",
        at.0, at.1, ignored.iter().map(|last| format!(". Last ignored: {last}")).collect::<String>()
    )]
    Missing { missing: Vec<usize>, at: (String, u16), ignored: Option<String> },
    /// A host has no address.
    #[error(
        "no address found for the host \"{host}\" ({reason}); set MASTER_ADDR to a name that this machine can look up, \
         or to an address"
    )]
    Host { host: String, reason: String },
    /// A rank cannot be reached.
    #[error(
        "rank {rank} cannot be reached at {}:{} ({error}); \
         check that it runs, and that the port is open to this machine",
        at.0, at.1
    )]
    Unreachable { rank: usize, at: (String, u16), error: ErrorKind },
    /// A process that knows the secret is not one of the ranks.
    #[error("a process that claims to be rank {rank} cannot join: {reason}")]
    Stranger { rank: usize, reason: String },
    /// Rank 0 refused the connection.
    #[error("rank 0 refused the connection: {0}")]
    Refused(String),
    /// A connection broke before all ranks were connected.
    #[error(
        "the connection to rank {rank} broke before all ranks were connected ({error}); look at that rank's own message"
    )]
    Broken { rank: usize, error: ErrorKind },
    /// The link over which addresses were exchanged failed.
    #[error("addresses could not be exchanged: {0}")]
    Link(String),
    /// A thread cannot be started.
    #[error("a thread that serves the connections cannot be started ({0})")]
    Thread(ErrorKind),
}

burn_pipeline_plan::debug_as_text!(TcpError);

impl TcpError {
    pub(super) fn broken(rank: usize) -> impl Fn(Error) -> Self {
        move |error| Self::Broken { rank, error: error.kind() }
    }

    pub(super) fn thread(error: Error) -> Self {
        Self::Thread(error.kind())
    }
}

fn advice(error: ErrorKind) -> &'static str {
    match error {
        ErrorKind::AddrInUse => "another process listens there: set MASTER_PORT to a free port, the same for all ranks",
        _ => "set MASTER_ADDR to an address that rank 0's machine has, or to 0.0.0.0 on rank 0 alone",
    }
}
