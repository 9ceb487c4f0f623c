//! What can go wrong while a rank runs its plan.

use crate::link::LinkError;
use crate::plan::{Op, StageId, Task};
use crate::stage::{MicrobatchError, SharedError, StageError};

/// Ranks of one job that do not have in common what they must.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank} differs from the others in {what}: it has {theirs}, and they have {others}")]
pub struct HandshakeError {
    /// The rank that differs from most (of two, the later one).
    pub rank: usize,
    /// In what.
    pub what: String,
    /// What it has.
    pub theirs: String,
    /// What most have.
    pub others: String,
}

/// An error of a rank's run; all fields that are known are there.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ExecuteError {
    /// A stage refused what it got, or its device reported an error.
    #[error("rank {rank}, stage {stage}, microbatch {microbatch}, {op}: {source}")]
    Stage {
        /// The rank.
        rank: usize,
        /// The stage.
        stage: StageId,
        /// The microbatch, within its route.
        microbatch: usize,
        /// The operation.
        op: Op,
        /// What went wrong.
        source: StageError,
    },
    /// User code panicked.
    #[error("rank {rank}, stage {stage}, microbatch {microbatch}, {op}: the stage's code panicked: {message}")]
    Panic {
        /// The rank.
        rank: usize,
        /// The stage.
        stage: StageId,
        /// The microbatch, within its route.
        microbatch: usize,
        /// The operation.
        op: Op,
        /// What the panic said.
        message: String,
    },
    /// Code outside a task panicked (initialising a stage, stepping its weights).
    #[error("rank {rank} panicked while {doing}: {message}")]
    RankPanic {
        /// The rank.
        rank: usize,
        /// What it was at.
        doing: String,
        /// What the panic said.
        message: String,
    },
    /// Another rank failed or did not answer.
    #[error("rank {rank}{}: {source}", at(.task))]
    Link {
        /// The rank.
        rank: usize,
        /// What it was about to do.
        task: Option<Task>,
        /// What the link reported.
        source: LinkError,
    },
    /// The ranks were not started for the same job.
    #[error("rank {rank}: {source}; start every rank with the same program, options and data types")]
    Handshake {
        /// The rank that reports it.
        rank: usize,
        /// Which rank differs, and in what.
        source: HandshakeError,
    },
    /// The batch does not hold what a stage reads.
    #[error("rank {rank}: {source}")]
    Batch {
        /// The rank.
        rank: usize,
        /// What is missing.
        source: MicrobatchError,
    },
    /// A task's input is neither here nor on its way.
    #[error(
        "rank {rank}, {task}: its input is neither here nor announced by a receive; lower the plan with `pass::insert_transfers`"
    )]
    NoInput {
        /// The rank.
        rank: usize,
        /// The task.
        task: Task,
    },
    /// The plan names a stage that the rank was not given.
    #[error("rank {rank} has no stage {stage}, which the plan runs there")]
    NoStage {
        /// The rank.
        rank: usize,
        /// The stage.
        stage: StageId,
    },
    /// The plan asks for an operation that nothing here carries out.
    #[error(
        "rank {rank}, {task}: this rank has no sharded parameters; build the plan without UNSHARD, RESHARD and REDUCE_GRAD"
    )]
    Unsupported {
        /// The rank.
        rank: usize,
        /// The task.
        task: Task,
    },
    /// An optimizer that pieces of parameters cannot be given to.
    #[error(
        "rank {rank}, stage {stage}: its optimizer does not step each element by itself (it uses norms or factors of whole parameters), so its parameters cannot be sharded; choose SGD, Adam, AdamW or the like, clip with `Builder::clip_norm`, or build without `sharded`"
    )]
    NotByElement {
        /// The rank.
        rank: usize,
        /// The stage.
        stage: StageId,
    },
    /// Copies of a parameter would drift apart.
    #[error("{source}")]
    Shared {
        /// The rank.
        rank: usize,
        /// Which, and why.
        source: Box<SharedError>,
    },
    /// A device reported an error outside a stage's task.
    #[error("rank {rank}: the device reported: {message}")]
    Device {
        /// The rank.
        rank: usize,
        /// What it said.
        message: String,
    },
}

fn at(task: &Option<Task>) -> String {
    task.map(|task| format!(", at {task}")).unwrap_or_default()
}

impl ExecuteError {
    /// Is this rank only reporting what another one did?
    pub fn is_secondary(&self) -> bool {
        matches!(self, ExecuteError::Link { source: LinkError::Peer(_) | LinkError::Deadline { .. }, .. })
    }
}
