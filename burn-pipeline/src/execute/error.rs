//! What can go wrong while a rank runs its plan.

use super::context::RunContext;
use crate::cost::PartitionError;
use crate::link::LinkError;
use crate::plan::{Op, Placement, StageId, Task};
use crate::stage::{MicrobatchError, SharedError, StageError};
use burn::tensor::DType;

/// An error of a rank's run. `rank` is the one that reports it, and microbatches count within their route.
///
/// An error inside a plan's row comes as [`ExecuteError::InRun`]; [`ExecuteError::cause`] looks through it.
#[derive(Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum ExecuteError {
    /// An error inside a row of the plan, with the step, what the action had got, and the plan around it.
    #[error("{source}\n{context}")]
    InRun { source: Box<ExecuteError>, context: Box<RunContext> },
    /// A stage refused its input, or its device reported an error.
    #[error("rank {rank}, stage {stage}, microbatch {microbatch}, {op}: {source}")]
    Stage { rank: usize, stage: StageId, microbatch: usize, op: Op, source: StageError },
    /// User code panicked.
    #[error("rank {rank}, stage {stage}, microbatch {microbatch}, {op}: the stage's code panicked: {message}")]
    Panic { rank: usize, stage: StageId, microbatch: usize, op: Op, message: String },
    /// Code outside a task panicked (initialising a stage, stepping its weights).
    #[error("rank {rank} panicked while {doing}: {message}")]
    RankPanic { rank: usize, doing: String, message: String },
    /// Another rank failed or did not answer, where a task was about to run.
    #[error("rank {rank}{}: {source}", at(.task))]
    Link { rank: usize, task: Option<Task>, source: LinkError },
    /// The ranks were started with different settings. `odd` differs from the majority; of two ranks, it is the later one.
    #[error(
        "rank {rank}: rank {odd} differs from the others in {what}: it has {theirs}, and they have {others}; start every rank with the same program, options and data types"
    )]
    Handshake { rank: usize, odd: usize, what: String, theirs: String, others: String },
    /// The batch does not hold what a stage reads.
    #[error("rank {rank}: {source}")]
    Batch { rank: usize, source: MicrobatchError },
    /// A task's input is neither here nor posted.
    #[error(
        "rank {rank}, {task}: its input is neither here nor announced by a receive; lower the plan with `Plan::with_transfers`"
    )]
    NoInput { rank: usize, task: Task },
    /// The plan names a stage that the rank was not given.
    #[error("rank {rank} has no stage {stage}, which the plan runs there")]
    NoStage { rank: usize, stage: StageId },
    /// A factory asked for the share of layers that no cut into these stages has (`StageContext::layers`).
    #[error(
        "rank {rank}, {doing}: {source}; give `StageContext::layers` the number of the model's layers, at least one a stage, and `Builder::cut` a cut of so many layers into so many stages"
    )]
    Layers { rank: usize, doing: String, source: PartitionError },
    /// An optimizer was about to step a sharded stage that holds more than its own pieces.
    #[error(
        "rank {rank}, stage {stage}: its sharded parameters are still gathered, so stepping its weights would lose the step; this is a fault of burn-pipeline: report it with the plan, and build without `sharded` meanwhile"
    )]
    Gathered { rank: usize, stage: StageId },
    /// An optimizer that cannot step pieces of parameters.
    #[error(
        "rank {rank}, stage {stage}: its optimizer does not step each element by itself (it uses norms or factors of whole parameters), so its parameters cannot be cut into pieces; choose SGD, Adam, AdamW or the like, clip with `Builder::clip_norm`, or build without `sharded`, `tensor_parallel` and `vocabulary`"
    )]
    NotByElement { rank: usize, stage: StageId },
    /// A layer's piece of a parameter was replaced after it was cut, by a record say.
    #[error(
        "rank {rank}: parameter {parameter} was cut for a group, and no stage holds the piece; load values into the ordinary layer, cut that, and keep what comes of it in the stage"
    )]
    CutReplaced { rank: usize, parameter: String },
    /// Gradients of weights that are spread over replicas are to be added in the order of microbatches.
    #[error(
        "rank {rank}, stage {stage}: some of its weights are spread over data-parallel replicas (`StageContext::replicas`) and get gradients of all replicas' microbatches at once, which `Accumulation::Ordered` cannot add one by one; leave one of them out"
    )]
    SpreadOrdered { rank: usize, stage: StageId },
    /// A stage does not take its module, or a weight that the caller stepped.
    #[error("rank {rank}, stage {stage}: {source}")]
    Module { rank: usize, stage: StageId, source: StageError },
    /// Parameters of a sharded stage were frozen or thawed.
    #[error(
        "rank {rank}, stage {stage}: other parameters are trained than at the start, but the stage is sharded, and pieces are cut at the start; freeze and thaw parameters without `sharded`, or build the pipeline anew from a checkpoint"
    )]
    TrainedChanged { rank: usize, stage: StageId },
    /// A forward changes state (running statistics) that would differ from one device's.
    #[error(
        "rank {rank}, stage {stage}: its forward changes `{name}` (running statistics), and {why}, so it would differ from one device's; choose a schedule with one copy of each stage and no data parallelism, freeze the statistics (`Module::freeze`), or use `GroupNorm` or `LayerNorm`"
    )]
    ForwardState { rank: usize, stage: StageId, name: String, why: String },
    /// A parameter or buffer has an element type that its device does not compute in.
    #[error(
        "rank {rank}, stage {stage}: `{name}` has elements of {dtype:?}, in which {device} does not compute: {why}; build the stage in f32 there, or choose another device"
    )]
    ElementType { rank: usize, stage: StageId, name: Box<str>, dtype: DType, device: Box<str>, why: Box<str> },
    /// Ranks that hold the last stage together gave different losses.
    #[error(
        "ranks {first} and {other} hold the last stage together, but computed the losses {loss} and {theirs} for microbatch {index}; what is not cut must be equal on all ranks of a group: pass the input of cut layers through `TensorGroup::copy_to` and partial results through `TensorGroup::reduce_from`, and draw random numbers by `nn::GroupDropout` alone"
    )]
    MembersDiffer { rank: usize, first: usize, other: usize, index: usize, loss: f64, theirs: f64 },
    /// Ranks that hold a stage together would step a weight that is whole on all of them by different gradients.
    #[error(
        "ranks {first} and {other} hold stage {stage} together, but computed different gradients of `{parameter}`, which is whole on both of them and would become two; pass the input of cut layers through `TensorGroup::copy_to`, use weights on pieces of an activation through `TensorGroup::for_pieces`, and draw random numbers by `nn::GroupDropout` alone"
    )]
    MembersDrift { rank: usize, first: usize, other: usize, stage: usize, parameter: String },
    /// Copies of a stage are no longer equal after the first step.
    #[error(
        "ranks {first} and {other} hold copies of stage {stage}, which have become different; give every rank an optimizer with the same settings, change weights alike on all of them (`Stage::after_step`), and use devices of one kind"
    )]
    Drifted { rank: usize, stage: usize, first: usize, other: usize },
    /// Copies of a shared parameter would diverge.
    #[error("{source}")]
    Shared { rank: usize, source: Box<SharedError> },
    /// The device has no memory for what a stage makes: in a task, in one of the microbatches, or in the optimizer's step.
    #[error(
        "rank {rank}, stage {stage}{}: {device} lacks memory: {message}; {}; take smaller microbatches, recompute (`StageBox::recomputed`), shard (`Builder::sharded`), or spread the model over more ranks",
        of_memory(*.microbatch, *.op, *.step), predicted_bytes(*.predicted)
    )]
    Memory {
        rank: usize,
        stage: StageId,
        microbatch: Option<usize>,
        op: Option<Op>,
        step: Option<u64>,
        device: Box<str>,
        message: Box<str>,
        predicted: Option<u64>,
    },
    /// The device is lost (reset by its driver, or gone), with all that it held.
    #[error(
        "rank {rank}: {device} is lost, with all that it held: {message}; start the process again, from a checkpoint"
    )]
    DeviceLost { rank: usize, device: String, message: String },
    /// A device reported an error outside a stage's task.
    #[error("rank {rank}: the device reported: {message}")]
    Device { rank: usize, message: String },
}

burn_pipeline_plan::debug_as_text!(ExecuteError);

fn at(task: &Option<Task>) -> String {
    task.map(|task| format!(", at {task}")).unwrap_or_default()
}

fn of_memory(microbatch: Option<usize>, op: Option<Op>, step: Option<u64>) -> String {
    match (microbatch, op, step) {
        (Some(microbatch), Some(op), _) => format!(", microbatch {microbatch}, {op}"),
        (_, _, Some(step)) => format!(", stepping its weights in step {step}"),
        _ => ", in one of the microbatches".to_owned(),
    }
}

fn predicted_bytes(predicted: Option<u64>) -> String {
    match predicted {
        Some(bytes) => format!("the plan was predicted to take {bytes} bytes on this rank"),
        None => "what the plan takes on this rank was not predicted (`Builder::planned_with`)".to_owned(),
    }
}

impl ExecuteError {
    /// The error without its place in a run: one line, which other ranks are told.
    pub fn cause(&self) -> &ExecuteError {
        match self {
            ExecuteError::InRun { source, .. } => source.cause(),
            error => error,
        }
    }

    /// Refuses what another rank says of stages that the plan does not have.
    pub(crate) fn refuse_unknown(
        rank: usize,
        peer: usize,
        placement: &Placement,
        stages: impl IntoIterator<Item = StageId>,
    ) -> Result<(), Self> {
        let unknown = stages.into_iter().find(|&stage| !placement.contains(stage));
        unknown.map_or(Ok(()), |stage| {
            let message = format!("there is no stage {stage}");
            Err(Self::Link { rank, task: None, source: LinkError::Gather { rank, peer, message } })
        })
    }

    /// The task that failed, if it was one of the plan's.
    pub(super) fn task(&self) -> Option<Task> {
        match *self.cause() {
            ExecuteError::Stage { stage, microbatch, op, .. } | ExecuteError::Panic { stage, microbatch, op, .. } => {
                Some(Task::new(stage, op, microbatch))
            }
            ExecuteError::Link { task, .. } => task,
            ExecuteError::Memory { stage, microbatch: Some(microbatch), op: Some(op), .. } => {
                Some(Task::new(stage, op, microbatch))
            }
            ExecuteError::NoInput { task, .. } => Some(task),
            _ => None,
        }
    }

    /// The index in its rank's row of the action that failed, if a row did.
    pub(super) fn cell(&self) -> Option<usize> {
        if let ExecuteError::InRun { context, .. } = self { Some(context.cell) } else { None }
    }

    /// Does this rank only report the failure of another one?
    pub fn is_secondary(&self) -> bool {
        let source = if let ExecuteError::Link { source, .. } = self.cause() { source } else { return false };
        matches!(source, LinkError::Peer(_) | LinkError::Deadline { .. } | LinkError::Left { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_speaks_of_a_stage_that_there_is_not_is_named() {
        let placement = Placement::looped(2, 2).unwrap();
        let refused = |stage| ExecuteError::refuse_unknown(0, 1, &placement, [StageId::new(0), stage]);
        assert_eq!(refused(StageId::new(3)), Ok(()));
        for unknown in [StageId::new(4), StageId::in_replica(1, 0)] {
            assert!(refused(unknown).unwrap_err().to_string().contains("rank 1"));
        }
    }
}
