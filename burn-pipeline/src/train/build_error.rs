//! Why a pipeline cannot be built.

use crate::cost::ProfileError;
use crate::pass::PassError;
use crate::plan::{CheckError, PlanError};
use crate::schedule::ScheduleError;
use crate::train::error::PipelineError;

/// Why a pipeline cannot be built, or a plan not be made for a batch.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BuildError {
    /// The schedule refuses the size.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// Transfers could not be inserted.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// The plan is not legal.
    #[error(transparent)]
    Check(#[from] Box<CheckError>),
    /// The link joins another number of ranks than the plan has.
    #[error("the plan has {ranks} rank(s), and the link joins {linked}; start as many processes as the plan has ranks")]
    Ranks {
        /// Ranks of the plan.
        ranks: usize,
        /// Ranks of the link.
        linked: usize,
    },
    /// The link joins another number of ranks than the replicas have together.
    #[error(
        "the plan has {ranks} rank(s) in each of {replicas} replicas, and the link joins {linked}; start {} processes",
        ranks * replicas
    )]
    Replicas {
        /// Ranks of the plan.
        ranks: usize,
        /// Data-parallel replicas.
        replicas: usize,
        /// Ranks of the link.
        linked: usize,
    },
    /// Nobody to shard over.
    #[error("parameters are to be sharded over 1 replica; give at least 2 (`Builder::data_parallel`)")]
    NothingToShardOver,
    /// There is nobody to train.
    #[error("0 data-parallel replicas were asked for; give at least 1 (`Builder::data_parallel`)")]
    NoReplicas,
    /// Replicas send without waiting.
    #[error(
        "sends of this link wait for their receives, which data-parallel replicas cannot work with; use another link"
    )]
    Rendezvous,
    /// The executor relies on the order of messages.
    #[error("the link does not keep messages of one rank to another in order, which plans are proved for")]
    Unordered,
    /// An edge past the next stage is none, or a plan that is lowered already lacks it.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Nothing says how stages are made.
    #[error("no stages were given; call `Builder::stages`")]
    NoStages,
    /// Nothing says what to run.
    #[error("no schedule and no plan was given; call `Builder::schedule` or `Builder::plan`")]
    NoSchedule,
    /// One device a rank is needed.
    #[error("{devices} device(s) were given for {ranks} ranks; give one, or one a rank")]
    Devices {
        /// Devices given.
        devices: usize,
        /// Ranks.
        ranks: usize,
    },
    /// A fixed plan runs one number of microbatches.
    #[error(
        "the plan runs {planned} microbatches, but the batch was cut into {wanted}; give a batch of at least {planned} samples, or a schedule instead of a plan"
    )]
    FixedPlan {
        /// Microbatches that the plan runs.
        planned: usize,
        /// Microbatches wanted.
        wanted: usize,
    },
    /// A schedule places stages elsewhere at another number of microbatches.
    #[error("{schedule} places stages differently for {microbatches} microbatches, and stages cannot move")]
    Moved {
        /// The schedule's name.
        schedule: String,
        /// Microbatches wanted.
        microbatches: usize,
    },
    /// Merged products are sums over microbatches in no order.
    #[error(
        "`merge_weights` adds gradients in another order than `Accumulation::Ordered` asks for; choose one of them"
    )]
    MergedAndOrdered,
    /// The links that messages are to be delayed as are none.
    #[error(transparent)]
    Delay(#[from] ProfileError),
    /// Stages could not be made.
    #[error("building the stages failed: {0}")]
    Stages(Box<PipelineError>),
}
