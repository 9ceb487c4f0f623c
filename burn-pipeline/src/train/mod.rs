//! Training: what happens around a plan's run, and the type that a user holds.
//!
//! Start at [`Pipeline`]: build it from stages, a schedule and a loss reduction; call [`step`](Pipeline::step) and
//! [`eval`](Pipeline::eval). Its ranks are threads ([`build`](Builder::build)), or it is one rank of several processes
//! that all make the same calls ([`build_rank`](Builder::build_rank)).
//!
//! Modules, from the bottom up:
//!
//! 1. `error`, `features`, `non_finite`, `progress`, `report` (with `batch_gradients`), `context`, `facts`, `stages`:
//!    values shared by pipeline and user.
//! 2. `plans`: the plans that a pipeline runs. `shared`: tied parameters, which several stages hold.
//! 3. `step`: the work of one rank with a batch and its weights.
//! 4. `control`: commands to all ranks, and their replies.
//! 5. `pipeline`: the type; `calls`: its methods, each with its commands; `checkpoint`: saving and loading.
//! 6. `setup`: configuring and starting a pipeline.
//! 7. `choose`: measuring a model, and choosing a schedule from the measurements.

mod batch_gradients;
mod calls;
mod checkpoint;
mod choose;
mod context;
mod control;
mod error;
mod facts;
mod features;
mod non_finite;
mod pipeline;
mod plans;
mod progress;
mod report;
mod setup;
mod shared;
mod stages;
mod step;

pub use crate::execute::MicrobatchLoss;
pub use crate::ranks::GroupSizes;
#[cfg(fuzzing)]
pub use crate::ranks::sum_over_ranks;
pub use batch_gradients::GradientError;
pub use checkpoint::{Adapters, Checkpoint, CheckpointError, Checkpoints, Export, ParameterEntry, Pretrained};
pub use choose::{
    AutoError, AutoOptions, AutoPipeline, Choice, Decision, MeasureError, MeasuredLayers, MemoryMeter, Trial,
};
pub use context::StageContext;
pub use error::{BuildError, PipelineError};
pub use features::{Feature, NotTogether};
pub use non_finite::{NonFinite, OnNonFinite};
pub use pipeline::Pipeline;
pub use progress::{Progress, ScaleProgress};
pub use report::{EvalReport, EvalResults, StepReport};
pub use setup::Builder;
pub use shared::{SharedCopy, SharedParameter, SharedReport};
