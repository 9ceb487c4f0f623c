//! What can go wrong while a rank runs its plan.

use super::context::RunContext;
use crate::link::LinkError;
use crate::stage::{MicrobatchError, SharedError, StageError};
use burn::tensor::DType;
use burn_pipeline_plan::cost::PartitionError;
use burn_pipeline_plan::plan::{Op, Placement, StageId, Task};

/// An error of a rank's run. `rank` reports it, and microbatches count within their route.
///
/// An error inside a plan's row is wrapped in [`ExecuteError::InRun`]; [`ExecuteError::cause`] unwraps it.
#[derive(Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum ExecuteError {
    /// An error inside a row of the plan, with the step, the action's inputs, and the plan around it.
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
    /// Another rank failed or did not answer.
    #[error("rank {rank}{}: {source}", at(.task))]
    Link { rank: usize, task: Option<Task>, source: LinkError },
    /// The ranks were started with different settings. `odd` differs from the majority; of two ranks, it is the later
    /// one.
    #[error(
        "rank {rank}: rank {odd} differs from the others in {what}: it has {theirs}, and they have {others}; \
         start every rank with the same program, options and data types"
    )]
    Handshake { rank: usize, odd: usize, what: String, theirs: String, others: String },
    /// The batch lacks something that a stage reads.
    #[error("rank {rank}: {source}")]
    Batch { rank: usize, source: MicrobatchError },
    /// A task's input has neither arrived nor been posted.
    #[error(
        "rank {rank}, {task}: its input has neither arrived nor been announced by a receive; \
         lower the plan with `Plan::with_transfers`"
    )]
    NoInput { rank: usize, task: Task },
    /// The plan runs a stage that the rank does not have.
    #[error("rank {rank} has no stage {stage}, which the plan runs there")]
    NoStage { rank: usize, stage: StageId },
    /// A factory requested its share of the layers (`StageContext::layers`), but no cut into these stages has it.
    #[error(
        "rank {rank}, {doing}: {source}; give `StageContext::layers` the number of the model's layers, at least one \
         per stage, and `Builder::cut` a cut of that many layers into that many stages"
    )]
    Layers { rank: usize, doing: String, source: PartitionError },
    /// An optimizer was about to step a sharded stage that holds more than its own pieces.
    #[error(
        "rank {rank}, stage {stage}: its sharded parameters are still gathered, so an optimizer step would be lost; \
         this is a bug in burn-pipeline: report it with the plan, and build without `sharded` meanwhile"
    )]
    Gathered { rank: usize, stage: StageId },
    /// The optimizer cannot step pieces of parameters.
    #[error(
        "rank {rank}, stage {stage}: its optimizer does not step each element by itself (it uses norms or factors of \
         whole parameters), so its parameters cannot be cut into pieces; choose SGD, Adam, AdamW or another \
         elementwise optimizer, clip with `Builder::clip_norm`, or build without `sharded`, \
         `tensor_parallel` and `vocabulary`"
    )]
    NotByElement { rank: usize, stage: StageId },
    /// A layer's piece of a parameter was replaced after it was cut, for example by a record.
    #[error(
        "rank {rank}: parameter {parameter} was cut for a group, and no stage holds the piece; load values into the \
         ordinary layer, cut that layer, and keep the result in the stage"
    )]
    CutReplaced { rank: usize, parameter: String },
    /// A low-rank adapter was added to a piece of a weight.
    #[error(
        "rank {rank}, stage {stage}: `{name}` is a piece of a weight, and got its low-rank adapter after it was cut, \
         so the members' adapters are not those of one weight; add adapters to the whole layer (`Module::apply_lora`), \
         then cut it"
    )]
    AdaptedAfterCut { rank: usize, stage: StageId, name: String },
    /// Weights that are cut over data-parallel replicas cannot use ordered accumulation.
    #[error(
        "rank {rank}, stage {stage}: some of its weights are cut over data-parallel replicas \
         (`StageContext::replicas`) and get gradients of all replicas' microbatches at once, which \
         `Accumulation::Ordered` cannot add one by one; use only one of the two"
    )]
    OrderedOverReplicas { rank: usize, stage: StageId },
    /// A stage rejects its module, or a weight that the caller stepped.
    #[error("rank {rank}, stage {stage}: {source}")]
    Module { rank: usize, stage: StageId, source: StageError },
    /// Parameters of a sharded stage were frozen or unfrozen.
    #[error(
        "rank {rank}, stage {stage}: the trainable parameters changed, which sharded stages do not support: their \
         pieces are cut at the start; freeze and unfreeze parameters without `sharded`, or rebuild the pipeline from a \
         checkpoint"
    )]
    TrainedChanged { rank: usize, stage: StageId },
    /// A stage before the first one that trains has a parameter that trains.
    #[error(
        "rank {rank}, stage {stage}: a parameter was unfrozen, but the plan has no backward for stages before stage \
         {first}; unfreeze it with `Pipeline::replace_module` or `replace_layer`, which change the plan too"
    )]
    Unfrozen { rank: usize, stage: StageId, first: usize },
    /// A forward changes state (running statistics) that would differ from one device's.
    #[error(
        "rank {rank}, stage {stage}: its forward changes `{name}` (running statistics), and {why}, so it would differ \
         from one device's; choose a schedule with one copy of each stage and no data parallelism, freeze the \
         statistics (`Module::freeze`), or use `GroupNorm` or `LayerNorm`"
    )]
    ForwardState { rank: usize, stage: StageId, name: String, why: String },
    /// A parameter or buffer has an element type that its device does not compute in.
    #[error(
        "rank {rank}, stage {stage}: `{name}` has elements of {dtype:?}, in which {device} does not compute: {why}; \
         build the stage in f32 there, or choose another device"
    )]
    ElementType { rank: usize, stage: StageId, name: Box<str>, dtype: DType, device: Box<str>, why: Box<str> },
    /// Members of the last stage's tensor-parallel group computed different losses.
    #[error(
        "ranks {first} and {other} of the last stage's tensor-parallel group computed the losses {loss} and {theirs} \
         for microbatch {index}; what is not cut must be equal on all members: pass the input of cut layers \
         through `TensorGroup::copy_to` and partial results through `TensorGroup::reduce_from`, and draw random \
         numbers only with `nn::GroupDropout`"
    )]
    MembersDiffer { rank: usize, first: usize, other: usize, index: usize, loss: f64, theirs: f64 },
    /// Members of a tensor-parallel group computed different gradients of a replicated weight.
    #[error(
        "ranks {first} and {other} of stage {stage}'s tensor-parallel group computed different gradients of \
         `{parameter}`, which is whole on both of them, so the two would diverge; pass the input of cut layers through \
         `TensorGroup::copy_to`, use weights on pieces of an activation through `TensorGroup::for_pieces`, and draw \
         random numbers only with `nn::GroupDropout`"
    )]
    MembersDrift { rank: usize, first: usize, other: usize, stage: usize, parameter: String },
    /// Copies of a stage differ after the first step.
    #[error(
        "ranks {first} and {other} hold copies of stage {stage}, which have become different; give every rank an \
         optimizer with the same settings, change weights in the same way on all of them (`Stage::after_step`), and \
         use devices of one kind"
    )]
    Drifted { rank: usize, stage: usize, first: usize, other: usize },
    /// Copies of a shared parameter would diverge.
    #[error("{source}")]
    Shared { rank: usize, source: Box<SharedError> },
    /// The device is out of memory: in a task, in one of the microbatches, or in the optimizer's step.
    #[error(
        "rank {rank}, stage {stage}{}: out of memory on {device}: {message}; {}; take smaller microbatches, recompute \
         (`StageBox::recomputed`), shard (`Builder::sharded`), or use more ranks",
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
    /// The device is lost (reset by its driver, or gone), with everything on it.
    #[error("rank {rank}: {device} is lost, with everything on it: {message}; restart the process from a checkpoint")]
    DeviceLost { rank: usize, device: String, message: String },
    /// A device reported an error outside a stage's task.
    #[error("rank {rank}: the device reported: {message}")]
    Device { rank: usize, message: String },
    /// The threads of a rank cannot be started.
    #[error(
        "rank {rank}: its threads cannot be started: {message}; raise the limit of threads per process (`ulimit -u`)"
    )]
    Threads { rank: usize, message: String },
    /// Tensors that another rank sent outside a plan cannot be read.
    #[error("rank {rank} cannot read tensors that another rank sent: {message}; build all ranks from one version")]
    Decode { rank: usize, message: String },
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
        None => "the plan's memory on this rank was not predicted (`Builder::planned_with`)".to_owned(),
    }
}

impl ExecuteError {
    /// The error without its place in a run: one line, which other ranks receive.
    pub fn cause(&self) -> &ExecuteError {
        match self {
            ExecuteError::InRun { source, .. } => source.cause(),
            error => error,
        }
    }

    /// The rank that failed: of another rank's failure, which the link reports, that rank.
    pub fn rank(&self) -> usize {
        match self {
            ExecuteError::InRun { source, .. } => source.rank(),
            ExecuteError::Link { rank, source, .. } => source.failure().map_or(*rank, |failure| failure.rank),
            ExecuteError::Stage { rank, .. }
            | ExecuteError::Panic { rank, .. }
            | ExecuteError::RankPanic { rank, .. }
            | ExecuteError::Handshake { rank, .. }
            | ExecuteError::Batch { rank, .. }
            | ExecuteError::NoInput { rank, .. }
            | ExecuteError::NoStage { rank, .. }
            | ExecuteError::Layers { rank, .. }
            | ExecuteError::Gathered { rank, .. }
            | ExecuteError::NotByElement { rank, .. }
            | ExecuteError::CutReplaced { rank, .. }
            | ExecuteError::AdaptedAfterCut { rank, .. }
            | ExecuteError::OrderedOverReplicas { rank, .. }
            | ExecuteError::Module { rank, .. }
            | ExecuteError::TrainedChanged { rank, .. }
            | ExecuteError::Unfrozen { rank, .. }
            | ExecuteError::ForwardState { rank, .. }
            | ExecuteError::ElementType { rank, .. }
            | ExecuteError::MembersDiffer { rank, .. }
            | ExecuteError::MembersDrift { rank, .. }
            | ExecuteError::Drifted { rank, .. }
            | ExecuteError::Shared { rank, .. }
            | ExecuteError::Memory { rank, .. }
            | ExecuteError::DeviceLost { rank, .. }
            | ExecuteError::Device { rank, .. }
            | ExecuteError::Threads { rank, .. }
            | ExecuteError::Decode { rank, .. } => *rank,
        }
    }

    /// Refuses another rank's data about stages that the plan does not have.
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

    /// The task that failed, if a task of the plan did.
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

    /// The index in its rank's row of the failed action, if a row failed.
    pub(super) fn cell(&self) -> Option<usize> {
        if let ExecuteError::InRun { context, .. } = self { Some(context.cell) } else { None }
    }

    /// Returns true if this rank only reports the failure of another one.
    pub fn is_secondary(&self) -> bool {
        let source = if let ExecuteError::Link { source, .. } = self.cause() { source } else { return false };
        source.is_echo() || matches!(source, LinkError::Deadline { .. } | LinkError::Left { .. })
    }

    /// Returns true if this rank only repeats the failure of another one, which all ranks know.
    pub(crate) fn is_echo(&self) -> bool {
        matches!(self.cause(), ExecuteError::Link { source, .. } if source.is_echo())
    }

    /// Returns true if ranks, links and devices still work after it: only a call failed.
    pub(crate) fn is_of_call(&self) -> bool {
        match self.cause() {
            ExecuteError::Link { source, .. } => source.leaves_link_sound(),
            ExecuteError::Handshake { .. } | ExecuteError::DeviceLost { .. } => false,
            _ => true,
        }
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
        for unknown in [StageId::new(4), StageId::in_route(1, 0)] {
            assert!(refused(unknown).unwrap_err().to_string().contains("rank 1"));
        }
    }
}
