//! The errors of MPI.

use burn_pipeline::link::LinkError;

/// Why MPI cannot be used.
#[derive(Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what variants and fields are")]
pub enum MpiError {
    #[error("MPI was already initialised in this process; keep the first `Mpi`, and open several links with it")]
    AlreadyInitialised,
    #[error("the progress thread cannot be started: {0}")]
    Thread(String),
    #[error(
        "not all processes reached {what} within {seconds:.1} s; \
         start all of them with one `mpirun`, and with the same program"
    )]
    Timeout { what: &'static str, seconds: f64 },
    #[error("cannot open a link, which all ranks must do together: {0}")]
    NotAll(LinkError),
    #[error("the progress thread ended while {0}")]
    Ended(&'static str),
}

burn_pipeline::debug_as_text!(MpiError);
