//! Training: what happens around a plan's run, and the type that a user holds.
//!
//! [`Pipeline`] is the front door: build it from stages, a schedule and a loss reduction; call
//! [`step`](Pipeline::step) and [`eval`](Pipeline::eval). It drives one [`Rank`] a thread
//! ([`build`](Builder::build)), or one in each of several processes that all make the same calls
//! ([`build_rank`](Builder::build_rank)).

mod build;
mod build_error;
mod calls;
mod checkpoint;
mod choose;
mod control;
mod error;
mod pipeline;
mod plans;
mod report;
mod shared;
mod step;

pub use build::{Builder, StageContext};
pub use build_error::BuildError;
pub use checkpoint::{Checkpoint, CheckpointError, Checkpoints, FileEntry, ParameterEntry, Progress, StateEntry};
pub use choose::{
    AutoError, AutoOptions, AutoPipeline, Decision, MeasureError, MeasuredLayers, Trial, measured_profile,
};
pub use error::PipelineError;
pub use pipeline::Pipeline;
pub use report::{EvalReport, StepReport, Wants};
pub use shared::{SharedCopy, SharedParameter, SharedReport};
pub use step::{ApplyOutcome, BatchOutcome, Contract, Rank, evaluated_loss};
