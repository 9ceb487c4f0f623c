//! Training: what happens around a plan's run, and the type that a user holds.
//!
//! [`Pipeline`] is the front door: build it from stages, a schedule and a loss reduction; call
//! [`step`](Pipeline::step) and [`eval`](Pipeline::eval). It drives one [`Rank`] a thread
//! ([`build`](Builder::build)), or one in each of several processes that all make the same calls
//! ([`build_rank`](Builder::build_rank)).

mod admit;
mod agree;
mod ask;
mod auto;
mod build_error;
mod builder;
mod checkpoint;
mod command;
mod contract;
mod decision;
mod deliver;
mod ending;
mod error;
mod layers;
mod learn;
mod pipeline;
mod probe;
mod profile;
mod rank;
mod replica;
mod report;
mod shared;
mod shares;
mod source;
mod start;
mod together;
mod told;
mod worker;

pub use auto::{AutoOptions, AutoPipeline};
pub use build_error::BuildError;
pub use builder::{Builder, StageContext};
pub use checkpoint::{Checkpoint, CheckpointError, Checkpoints, FileEntry, ParameterEntry, Progress, StateEntry};
pub use contract::{Contract, evaluated_loss};
pub use decision::{AutoError, Decision, Trial};
pub use error::PipelineError;
pub use layers::{MeasureError, MeasuredLayers};
pub use pipeline::Pipeline;
pub use profile::measured_profile;
pub use rank::{ApplyOutcome, BatchOutcome, Rank};
pub use report::{EvalReport, StepReport, Wants};
pub use shared::{SharedCopy, SharedParameter, SharedReport};
