//! What can go wrong while a rank runs its plan.

use super::context::RunContext;
use crate::link::LinkError;
use crate::plan::{Op, StageId, Task};
use crate::stage::{MicrobatchError, SharedError, StageError};

/// Ranks of one job that differ in something that must be equal on all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank} differs from the others in {what}: it has {theirs}, and they have {others}")]
pub struct HandshakeError {
    /// The rank that differs from the majority; of two ranks, the later one.
    pub rank: usize,
    /// What differs.
    pub what: String,
    /// This rank's value.
    pub theirs: String,
    /// The majority's value.
    pub others: String,
}

/// An error of a rank's run.
///
/// An error inside a plan's row comes as [`ExecuteError::InRun`]; [`ExecuteError::cause`] looks through it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ExecuteError {
    /// An error inside a row of the plan, with its place.
    #[error("{source}\n{context}")]
    InRun {
        /// The error.
        source: Box<ExecuteError>,
        /// The step, what the action had got, and the plan around it.
        context: Box<RunContext>,
    },
    /// A stage refused its input, or its device reported an error.
    #[error("rank {rank}, stage {stage}, microbatch {microbatch}, {op}: {source}")]
    Stage {
        /// The rank.
        rank: usize,
        /// The stage.
        stage: StageId,
        /// The microbatch, counted within its route.
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
        /// The microbatch, counted within its route.
        microbatch: usize,
        /// The operation.
        op: Op,
        /// The panic's message.
        message: String,
    },
    /// Code outside a task panicked (initialising a stage, stepping its weights).
    #[error("rank {rank} panicked while {doing}: {message}")]
    RankPanic {
        /// The rank.
        rank: usize,
        /// What it was doing.
        doing: String,
        /// The panic's message.
        message: String,
    },
    /// Another rank failed or did not answer.
    #[error("rank {rank}{}: {source}", at(.task))]
    Link {
        /// The rank.
        rank: usize,
        /// The task that it was about to run.
        task: Option<Task>,
        /// The link's error.
        source: LinkError,
    },
    /// The ranks were started with different settings.
    #[error("rank {rank}: {source}; start every rank with the same program, options and data types")]
    Handshake {
        /// The rank that reports it.
        rank: usize,
        /// Which rank differs in what.
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
    /// A task's input is neither here nor posted.
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
    /// The plan contains an operation that this rank cannot run.
    #[error(
        "rank {rank}, {task}: this rank has no sharded parameters; build the plan without UNSHARD, RESHARD and REDUCE_GRAD"
    )]
    Unsupported {
        /// The rank.
        rank: usize,
        /// The task.
        task: Task,
    },
    /// An optimizer that cannot step pieces of parameters.
    #[error(
        "rank {rank}, stage {stage}: its optimizer does not step each element by itself (it uses norms or factors of whole parameters), so its parameters cannot be sharded; choose SGD, Adam, AdamW or the like, clip with `Builder::clip_norm`, or build without `sharded`"
    )]
    NotByElement {
        /// The rank.
        rank: usize,
        /// The stage.
        stage: StageId,
    },
    /// Parameters of a sharded stage were frozen or thawed.
    #[error(
        "rank {rank}, stage {stage}: other parameters are trained than at the start, but the stage is sharded, and pieces are cut at the start; freeze and thaw parameters without `sharded`, or build the pipeline anew from a checkpoint"
    )]
    TrainedChanged {
        /// The rank.
        rank: usize,
        /// The stage.
        stage: StageId,
    },
    /// A forward changes state (running statistics) that would differ from one device's.
    #[error(
        "rank {rank}, stage {stage}: its forward changes `{name}` (running statistics), and {why}, so it would differ from one device's; choose a schedule with one copy of each stage and no data parallelism, freeze the statistics (`Module::freeze`), or use `GroupNorm` or `LayerNorm`"
    )]
    ForwardState {
        /// The rank.
        rank: usize,
        /// The stage.
        stage: StageId,
        /// The name in the model of what it changes.
        name: String,
        /// Why it would differ.
        why: String,
    },
    /// Copies of a shared parameter would diverge.
    #[error("{source}")]
    Shared {
        /// The rank.
        rank: usize,
        /// Which parameter, and why.
        source: Box<SharedError>,
    },
    /// A device reported an error outside a stage's task.
    #[error("rank {rank}: the device reported: {message}")]
    Device {
        /// The rank.
        rank: usize,
        /// The device's message.
        message: String,
    },
}

fn at(task: &Option<Task>) -> String {
    task.map(|task| format!(", at {task}")).unwrap_or_default()
}

impl ExecuteError {
    /// The error without its place in a run: one line, which other ranks are told.
    pub fn cause(&self) -> &ExecuteError {
        match self {
            ExecuteError::InRun { source, .. } => source.cause(),
            error => error,
        }
    }

    /// The task that failed, if it was one of the plan's.
    pub(super) fn task(&self) -> Option<Task> {
        match *self {
            ExecuteError::Stage { stage, microbatch, op, .. } | ExecuteError::Panic { stage, microbatch, op, .. } => {
                Some(Task::new(stage, op, microbatch))
            }
            ExecuteError::Link { task, .. } => task,
            ExecuteError::NoInput { task, .. } | ExecuteError::Unsupported { task, .. } => Some(task),
            _ => None,
        }
    }

    /// Does this rank only report the failure of another one?
    pub fn is_secondary(&self) -> bool {
        matches!(self.cause(), ExecuteError::Link { source: LinkError::Peer(_) | LinkError::Deadline { .. }, .. })
    }
}
