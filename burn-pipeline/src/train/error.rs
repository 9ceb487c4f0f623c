//! Why a call on a pipeline failed, and whether anything was run.

use crate::execute::ExecuteError;
use crate::link::{Activity, Failure};
use crate::plan::StageId;
use crate::stage::{MicrobatchError, StageError};
use crate::train::build_error::BuildError;

/// Why a call on a pipeline failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PipelineError {
    /// The batch cannot be cut, or does not hold what stages read. Nothing was run; the pipeline is as before.
    #[error(transparent)]
    Batch(#[from] MicrobatchError),
    /// The batch's tensors are not what a stage takes. Nothing was run; the pipeline is as before.
    #[error("stage {stage} does not take this batch: {source}")]
    Refused {
        /// The stage.
        stage: StageId,
        /// What does not fit.
        source: StageError,
    },
    /// No plan can be made for the batch. Nothing was run; the pipeline is as before.
    #[error(transparent)]
    Plan(Box<BuildError>),
    /// A training batch without target, or a last stage without loss. Nothing was run.
    #[error(
        "a training step needs a loss on the last stage (`StageBox::with_loss`) and a target (`Batch::target`); {missing} is missing"
    )]
    NoLoss {
        /// Which of the two.
        missing: &'static str,
    },
    /// The plan runs forwards alone. Nothing was run.
    #[error("{schedule} runs no backwards, so it cannot train; choose another schedule, or call `eval`")]
    ForwardOnly {
        /// The plan's name.
        schedule: String,
    },
    /// Another process refused the call. Nothing was run; the pipeline is as before.
    #[error("rank {rank} refused this call, so that no rank ran it: {message}")]
    Elsewhere {
        /// The rank.
        rank: usize,
        /// What it said.
        message: String,
    },
    /// The processes did not make the same call. Nothing was run.
    #[error("rank {rank} calls {theirs}, while others call {others}; all processes must make the same calls")]
    Apart {
        /// The rank that differs from most.
        rank: usize,
        /// Its call.
        theirs: String,
        /// The others'.
        others: String,
    },
    /// A rank failed; the pipeline is closed.
    #[error("{0}")]
    Rank(ExecuteError),
    /// A rank did not answer in time; the pipeline is closed.
    #[error(
        "rank {rank} did not answer within {seconds:.1} s: it {activity}; the pipeline is closed, build it anew or raise the deadline"
    )]
    Silent {
        /// The rank.
        rank: usize,
        /// The deadline.
        seconds: f64,
        /// What it was last seen doing.
        activity: Activity,
    },
    /// An earlier failure closed the pipeline.
    #[error("the pipeline was closed by an earlier failure of rank {}: {}; build it anew", .0.rank, .0.message)]
    Closed(Failure),
    /// No such stage, or a stage of another module type.
    #[error("stage {stage} is not a `{wanted}`, or this process has no such stage")]
    NoSuchModule {
        /// The stage.
        stage: usize,
        /// The type asked for.
        wanted: &'static str,
    },
}
