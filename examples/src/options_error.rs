//! Why the flags of `train_gpt` are invalid, and what to do.

use crate::corpus::TooShort;
use crate::cut::CutError;
use crate::device::DeviceError;
use crate::learning_rate::RateError;
use burn_pipeline::link::{LaunchError, Launcher};
use burn_pipeline::plan::PlanError;
use burn_pipeline::schedule::ScheduleError;
use std::path::PathBuf;

/// Why the flags are invalid.
#[derive(thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum OptionsError {
    /// No such schedule, or not at this size.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The plan's file cannot be read.
    #[error("the plan {} cannot be read: {source}", path.display())]
    ReadPlan { path: PathBuf, source: std::io::Error },
    /// The plan's file is not a plan.
    #[error("{} is not a plan: {source}", path.display())]
    ParsePlan { path: PathBuf, source: PlanError },
    /// The plan has no backwards.
    #[error("{plan} runs forwards alone, so it trains nothing; choose a schedule with backwards, such as 1F1B")]
    NoBackward { plan: String },
    /// A plan from a file runs a fixed number of microbatches.
    #[error("the plan runs {microbatches} microbatches, more than the {batch} windows of a batch; raise --batch")]
    BatchTooSmall { microbatches: usize, batch: usize },
    /// A replica would get no window.
    #[error("--data-parallel {replicas} needs a --batch of at least {}", replicas * microbatches)]
    Replicas { replicas: usize, microbatches: usize },
    /// Sharding over one replica.
    #[error("--sharded needs --data-parallel of at least 2")]
    Sharded,
    /// The heads do not divide the width.
    #[error("--heads {heads} does not divide --d-model {d_model}")]
    Heads { heads: usize, d_model: usize },
    /// The window is longer than the text.
    #[error(transparent)]
    Corpus(#[from] TooShort),
    /// The learning rate is invalid.
    #[error(transparent)]
    Rate(#[from] RateError),
    /// The launcher's variables are invalid.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A schedule that is chosen later may have other stages.
    #[error("--cut does not work with --schedule auto, which may choose other stages; leave one of them out")]
    AutoCut,
    /// The model cannot be cut like this.
    #[error(transparent)]
    Cut(#[from] CutError),
    /// MPI was not compiled in.
    #[error(
        "--link mpi and --processes need MPI, which is not in this build; build with --features mpi, \
         or start the ranks with torchrun or Slurm and --link tcp"
    )]
    NoMpi,
    /// The process that starts processes was itself started by a launcher.
    #[error("--processes starts `mpirun`, and {0} has started this process already; use --link mpi")]
    Started(Launcher),
    /// NCCL was not compiled in.
    #[error("--link nccl is not in this build; build with --features nccl")]
    NoNccl,
    /// No launcher made this process a rank.
    #[error(
        "this process has no rank; start it with torchrun or srun, \
         or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
    )]
    NoLauncher,
    /// The device is not available.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

burn_pipeline::debug_as_text!(OptionsError);
