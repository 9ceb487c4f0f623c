//! Why a program of a captured stage stopped.

/// An error of a program; the stage's error adds where it ran.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum ProgramError {
    /// An operation gave something other than the program was made for.
    #[error(
        "operation `{operation}` gave {got}, but the program has {expected}; if it belongs to a backend extension, its \
         `CapturedOp::run` must give what its `CapturedOp::outputs` declares"
    )]
    Operation { operation: String, expected: String, got: String },
    /// A program was given another tensor than it was made for.
    #[error(
        "a captured stage was given {got}, but its program was made for {expected}; this is a bug in this crate, \
         please report it"
    )]
    Given { expected: String, got: String },
    /// The device's backend cannot take a tensor.
    #[error("{0}")]
    Backend(String),
}

burn_pipeline_plan::debug_as_text!(ProgramError);
