//! The errors of MPI.

use burn_pipeline::link::LinkError;

/// Why MPI cannot be used.
#[derive(Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum MpiError {
    /// MPI was already initialised; a process can do that once.
    #[error("MPI was already initialised in this process; keep the first `Mpi`, and open several links with it")]
    AlreadyInitialised,
    /// The progress thread cannot be started.
    #[error("the progress thread cannot be started: {0}")]
    Thread(String),
    /// A timeout passed before all ranks arrived.
    #[error(
        "not all processes reached {what} within {seconds:.1} s; \
         start all of them with one `mpirun`, and with the same program"
    )]
    Timeout { what: &'static str, seconds: f64 },
    /// Not all ranks arrived to open a link.
    #[error("cannot open a link, which all ranks must do together: {0}")]
    NotAll(LinkError),
    /// The progress thread has ended.
    #[error("the progress thread ended while {0}")]
    Ended(&'static str),
}

burn_pipeline::debug_as_text!(MpiError);
