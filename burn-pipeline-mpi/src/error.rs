//! Why MPI cannot be used.

/// Why MPI cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum MpiError {
    /// It was initialised before, and can be only once in a process.
    #[error("MPI was initialised in this process before; keep the first `Mpi`, and open several links with it")]
    Again,
    /// No thread.
    #[error("the progress thread cannot be started: {0}")]
    Thread(String),
    /// Some ranks did not come.
    #[error(
        "not all processes came within {seconds:.1} s to {what}; was every one started, by the same `mpirun`, with the same program?"
    )]
    Late {
        /// What they should have come to.
        what: &'static str,
        /// How long was waited.
        seconds: f64,
    },
    /// The progress thread has ended.
    #[error("the progress thread has ended while {0}")]
    Ended(&'static str),
}
