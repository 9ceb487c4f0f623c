//! Errors of building a pipeline and of calls on it. Each message says what to do.
//!
//! Both are in one file because each can be the other's cause: ranks can fail while a pipeline is built, and a batch
//! may need a plan that cannot be built.

use crate::execute::ExecuteError;
use crate::layers::LayersError;
use crate::link::{Activity, Failure};
use crate::payload::{BoundaryError, PayloadSpec};
use crate::stage::{Matmuls, MicrobatchError, ReplaceError, StageError};
use crate::train::features::NotTogether;
use crate::train::non_finite::NonFinite;
use burn::module::ParamGroup;
use burn_pipeline_plan::cost::{PartitionError, ProfileError};
use burn_pipeline_plan::pass::PassError;
use burn_pipeline_plan::plan::{CheckError, PlanError, StageId};
use burn_pipeline_plan::schedule::ScheduleError;

/// Why a pipeline cannot be built, or a plan cannot be made for a batch.
#[derive(Clone, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum BuildError {
    /// The schedule refuses the size.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The list of layers is no model.
    #[error(transparent)]
    Model(#[from] LayersError),
    /// Transfers could not be inserted.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// The plan is not legal.
    #[error(transparent)]
    Check(#[from] Box<CheckError>),
    /// The number of ranks of the link is not the plan's.
    #[error("the plan has {ranks} rank(s), but the link has {linked}; start as many processes as the plan has ranks")]
    Ranks { ranks: usize, linked: usize },
    /// The number of ranks of the link is not that of all replicas and groups together.
    #[error(
        "the plan has {ranks} rank(s), {all} with all data-parallel replicas and tensor-parallel members, but the link \
         has {linked}; start {all} processes"
    )]
    Replicas { ranks: usize, all: usize, linked: usize },
    /// Sharding needs at least two replicas.
    #[error("parameters are to be sharded over 1 replica; give at least 2 (`Builder::data_parallel`)")]
    NothingToShardOver,
    /// At least one replica is needed.
    #[error("0 data-parallel replicas were requested; give at least 1 (`Builder::data_parallel`)")]
    NoReplicas,
    /// A tensor-parallel group would have no members.
    #[error("tensor-parallel groups of 0 ranks were requested; give at least 1 (`Builder::tensor_parallel`)")]
    NoMembers,
    /// The number of group sizes is neither one nor that of pipeline ranks.
    #[error(
        "{sizes} group sizes were given for {ranks} pipeline rank(s); give one size, or one per pipeline rank \
         (`Builder::tensor_parallel`)"
    )]
    GroupSizes { sizes: usize, ranks: usize },
    /// Values cannot be re-cut between groups of these sizes.
    #[error(
        "stage {from} is held by {senders} rank(s) and sends to stage {to}, held by {receivers}; one group size must \
         divide the other, so change them (`Builder::tensor_parallel`)"
    )]
    GroupBoundary { from: StageId, to: StageId, senders: usize, receivers: usize },
    /// The two copies of a stage are held by groups of different sizes.
    #[error(
        "the first copy of stage {stage} is held by {first} rank(s) and the second by {second}; use the same group \
         size for both (`Builder::tensor_parallel`), or choose a schedule with one copy of each stage"
    )]
    GroupCopies { stage: usize, first: usize, second: usize },
    /// The plan's vocabulary-parallel layers are not those given to the builder.
    #[error(
        "{plan} is vocabulary parallel for {planned}, but `Builder::vocabulary` gives {given}; give it the same \
         layers, or a plan without `S`, `T`, `IF` and `IB`"
    )]
    Vocabulary { plan: String, planned: String, given: String },
    /// A vocabulary without layers.
    #[error("`Builder::vocabulary` was given neither an embedding nor a head; give it one of them, or leave it out")]
    EmptyVocabulary,
    /// The last stage has a loss, but the vocabulary-parallel head computes the loss.
    #[error(
        "stage {stage} was built with a loss, but the vocabulary-parallel head comes after it and computes the cross \
         entropy; build it with `StageBox::new`"
    )]
    LossBeforeHead { stage: usize },
    /// Two features do not go together.
    #[error(transparent)]
    NotTogether(#[from] NotTogether),
    /// A skip edge is not valid, or is missing from a lowered plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// No stages were given.
    #[error("no model was given; call `Builder::layers` or `Builder::stages`")]
    NoStages,
    /// No schedule and no plan was given.
    #[error("no schedule and no plan was given; call `Builder::schedule` or `Builder::plan`")]
    NoSchedule,
    /// The number of devices is neither one nor the number of ranks.
    #[error("{devices} device(s) were given for {ranks} ranks; give one, or one per rank")]
    Devices { devices: usize, ranks: usize },
    /// A device's driver or hardware is missing or broken.
    #[error(
        "{device} does not answer: {message}; install its driver (NVIDIA's for CUDA; one for Vulkan, Metal or DirectX \
         12 for wgpu), or choose another device"
    )]
    NoDevice { device: String, message: String },
    /// The plan, which each data-parallel replica runs, was given for another number of microbatches.
    #[error(
        "the plan runs {planned} microbatches{}, but the batch has {wanted}; give a batch of at least {all} samples \
         or, by `Batch::from_microbatches`, of {all} microbatches, or give a schedule instead of a plan",
        on_each(*replicas),
        all = planned * replicas
    )]
    FixedPlan { planned: usize, replicas: usize, wanted: usize },
    /// The schedule has another placement for this number of microbatches.
    #[error(
        "{schedule} places stages differently for {microbatches} microbatches, and stages cannot move; keep the number \
         of microbatches"
    )]
    Moved { schedule: String, microbatches: usize },
    /// This processor or device has no such matmuls.
    #[error(
        "`Builder::matmuls` cannot be {matmuls:?} on {device}: it needs the device Flex, and a processor with AVX-512 \
         (`avx512f`, `avx512bw` and `avx512vl` in /proc/cpuinfo) for Bf16, or with matrix tiles under Linux \
         (`amx_bf16`) for Bf16x3 and Bf16x6; leave it out"
    )]
    NoMatmuls { matmuls: Matmuls, device: String },
    /// A declared group matches no parameter.
    #[error(
        "{group:?} matches no parameter of the model; names are {names}, ..; groups match names in the whole model \
         (`StageBox::named`), so correct the group or the names"
    )]
    EmptyGroup { group: Box<ParamGroup>, names: String },
    /// A declared list of layers holds no parameter of any stage.
    #[error(
        "`Names::layers_from` was given the list `{list}`, but no stage has a parameter there; the stages' paths are \
         {paths}, ..; give the path of the list inside the stage's module"
    )]
    EmptyList { list: String, paths: String },
    /// Two stages with given names use one name for different parameters.
    #[error(
        "stages {first} and {second} both claim a parameter named `{name}`; set the position of their layers in the \
         model with `StageBox::named`, or declare the parameter shared (`Builder::share`)"
    )]
    SameName { name: String, first: usize, second: usize },
    /// The loss scale is not valid.
    #[error("the loss scale of `Builder::precision` does not work: {reason}")]
    LossScale { reason: &'static str },
    /// The clipping norm is not valid.
    #[error("gradients cannot be clipped to the norm {norm}; give `Builder::clip_norm` a number above 0")]
    ClipNorm { norm: f64 },
    /// A stage other than the last has a loss, which would never be computed.
    #[error(
        "stage {stage} was built with a loss, but stage {last} is the last, and only its loss is computed; build the \
         others with `StageBox::new` (check `StageContext::is_last`)"
    )]
    LossInside { stage: usize, last: usize },
    /// The network given to `Builder::delayed` is not valid.
    #[error(transparent)]
    Delay(#[from] ProfileError),
    /// The profile is that of another model or of other stages.
    #[error(
        "the profile given to `Builder::planned_with` does not fit the plan: {0}; measure these stages \
         (`Builder::measure_memory`)"
    )]
    Planned(String),
    /// Stages were built for different numbers of layers, so some layers would be in no stage, or in two.
    #[error(
        "stage {stage} was built for its share of {layers} layers, but stage {differs} for its share of {others}; pass \
         the same number to `StageContext::layers` on all ranks and stages"
    )]
    OtherLayers { stage: usize, layers: String, differs: usize, others: String },
    /// A stage's output type is not the input type of the stage that receives it.
    #[error(
        "stage {from} returns {given}, but stage {to}, which receives it, takes {taken}; `Stage::Output` of the one \
         must be `Stage::Input` of the other"
    )]
    Boundary { from: StageId, to: StageId, given: String, taken: String },
    /// The layers cannot be cut into the stages.
    #[error(transparent)]
    Layers(#[from] PartitionError),
    /// Another process would choose its schedule with other options.
    #[error(
        "rank {rank} chooses its schedule with {theirs}, and this rank with {own}; give all processes the same options"
    )]
    AutoOptions { rank: usize, theirs: String, own: String },
    /// Building stages failed.
    #[error("building the stages failed: {0}")]
    Stages(Box<PipelineError>),
}

burn_pipeline_plan::debug_as_text!(BuildError);

impl BuildError {
    /// The error of one replica's part of a batch, with the microbatches of the whole batch.
    pub(crate) fn of_batch(self, wanted: usize, replicas: usize) -> Self {
        match self {
            BuildError::FixedPlan { planned, .. } => BuildError::FixedPlan { planned, replicas, wanted },
            BuildError::Moved { schedule, .. } => BuildError::Moved { schedule, microbatches: wanted },
            other => other,
        }
    }
}

/// Why a call on a pipeline failed.
#[derive(Clone, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum PipelineError {
    /// The batch cannot be cut, or lacks an input of a stage. Nothing was run; the pipeline is unchanged.
    #[error(transparent)]
    Batch(#[from] MicrobatchError),
    /// A stage does not take the batch's values, whose spec is `got`. Nothing was run; the pipeline is unchanged.
    #[error("stage {stage} does not take this batch: {source}; the batch holds {got}")]
    Refused { stage: StageId, source: StageError, got: PayloadSpec },
    /// The batch does not fit a vocabulary-parallel layer: its input the embedding, or its target the head. Nothing was
    /// run; the pipeline is unchanged.
    #[error(
        "the batch does not fit the vocabulary-parallel {layer} (`Builder::vocabulary`): {source}; the batch holds \
         {got}"
    )]
    RefusedIds { layer: &'static str, source: Box<BoundaryError>, got: PayloadSpec },
    /// No plan can be made for the batch. Nothing was run; the pipeline is unchanged.
    #[error(transparent)]
    Plan(Box<BuildError>),
    /// A training batch without a target. Nothing was run.
    #[error("a training step needs a target; give the batch one with `Batch::target`")]
    NoTarget,
    /// Gradients of the batch are wanted, but it holds none that can have one. Nothing was run.
    #[error(
        "gradients of the batch are wanted (`Builder::input_gradients`), but neither its input nor an extra holds a \
         float tensor, and integers have no gradient; give the first stage floats (embeddings instead of tokens), or a \
         prompt as an extra"
    )]
    NoFloats,
    /// A last stage without a loss. Nothing was run.
    #[error(
        "stage {last}, the last of {} on {ranks} rank(s), has no loss; give it one with `StageBox::with_loss`, or, if \
         the model goes on after it, give the schedule as many ranks and chunks as the model has stages (`Size`)",
        last + 1
    )]
    NoLoss { last: usize, ranks: usize },
    /// The plan has no backwards. Nothing was run.
    #[error("{schedule} runs no backwards, so it cannot train; choose another schedule, or call `eval`")]
    ForwardOnly { schedule: String },
    /// A loss or a gradient is NaN or infinite. Weights are unchanged; the gradients accumulated since the last step
    /// were dropped on all ranks.
    #[error(
        "step {step}, {source}; the weights are unchanged, and the gradients of this step were dropped: check the \
         learning rate and the microbatch's data, or continue without such steps (`Builder::on_non_finite`)"
    )]
    NonFinite { step: u64, source: NonFinite },
    /// No parameter of the model has a gradient. No weight was changed, and the step does not count. The batch does
    /// ([`Progress::batches`](crate::train::Progress)), and running statistics have seen it.
    #[error(
        "step {step} would train nothing: no parameter of the model has a gradient; unfreeze the parameters to train \
         (a group given to `Module::unfreeze_group` may match other names), or let the loss depend on them. Use a \
         learning rate of 0 to train nothing on purpose, and `accumulate` to compute gradients only"
    )]
    TrainsNothing { step: u64 },
    /// The pipeline has no optimizer. Nothing was run; the pipeline is unchanged.
    #[error("a step needs an optimizer; give one to `Builder::optimizer`, or compute gradients only with `accumulate`")]
    NoOptimizer,
    /// A learning rate is NaN or infinite. Nothing was run; the pipeline is unchanged.
    #[error("the learning rate is {rate}: every weight would become NaN; give a finite one")]
    LearningRate { rate: f64 },
    /// A learning rate has no rate for some parameter, as `ModuleLearningRate::default()`. Nothing was run; the
    /// pipeline is unchanged.
    #[error(
        "the learning rate holds no rate, or none for some parameter; give a number, or what `ModuleLrScheduler::step` \
         returns"
    )]
    NoLearningRate,
    /// Another process refused the call. Nothing was run; the pipeline is unchanged.
    #[error("rank {rank} refused this call, so no rank ran it: {message}")]
    Elsewhere { rank: usize, message: String },
    /// The processes made different calls. Nothing was run.
    #[error("rank {rank} is {theirs}, while others are {others}; all processes must make the same calls")]
    Diverged { rank: usize, theirs: String, others: String },
    /// A rank failed before any weight was changed; the pipeline is ready for the next call. If `dropped`, the
    /// gradients accumulated since the last step are gone, and [`Progress`](crate::train::Progress) and running
    /// statistics are those of the last step: run the same batches again, or others. [`ExecuteError::cause`] is the
    /// error without its place in the plan.
    #[error("{source}\n{}", undone(*.dropped))]
    Undone { source: Box<ExecuteError>, dropped: bool },
    /// A rank failed while weights were changed, so some ranks may have weights from before the step and others from
    /// after it. Weights can be read and exported and, unless copies of a stage differ, saved into a folder without
    /// checkpoints. Loading a checkpoint makes the pipeline ready again.
    #[error(
        "{0}\nsome ranks may have weights from before the step and others those from after it: load a checkpoint \
         (`Pipeline::load`) before the next step; until then weights can be read and exported"
    )]
    HalfStepped(Box<ExecuteError>),
    /// An earlier failure happened while weights were changed. Nothing was run.
    #[error(
        "rank {} failed while weights were changed ({}), so some ranks may have weights from before the step and \
         others those from after it; load a checkpoint (`Pipeline::load`) first",
        .0.rank, .0.message
    )]
    Uneven(Failure),
    /// A rank failed; the pipeline is closed. [`ExecuteError::cause`] is the error without its place in the plan.
    #[error("{0}")]
    Rank(ExecuteError),
    /// A rank did not respond in time; the pipeline is closed.
    #[error(
        "{}rank {rank} did not answer within {seconds:.1} s: it {activity}; the pipeline is closed; rebuild it, or \
         raise `Builder::timeout`",
        step.map(|step| format!("step {step}, ")).unwrap_or_default()
    )]
    Silent { rank: usize, step: Option<u64>, seconds: f64, activity: Activity },
    /// An earlier failure closed the pipeline.
    #[error("the pipeline was closed by an earlier failure of rank {}: {}; rebuild it", .0.rank, .0.message)]
    Closed(Failure),
    /// The stage's module cannot be replaced. Nothing was changed; the pipeline is unchanged.
    #[error("cannot replace the module of stage {stage}: {source}")]
    Replace { stage: usize, source: ReplaceError },
    /// The call does not go with a feature of the pipeline. Nothing was run; the pipeline is unchanged.
    #[error(transparent)]
    NotTogether(#[from] NotTogether),
    /// The batch is not even over replicas that exchange tensors in every microbatch. Nothing was run; the pipeline is
    /// unchanged.
    #[error(
        "{microbatches} microbatches cannot be shared evenly by {replicas} data-parallel replicas, which exchange \
         tensors in every microbatch of stage {stage}; give batches of enough samples for a multiple of {replicas} \
         microbatches"
    )]
    UnevenReplicas { stage: StageId, microbatches: usize, replicas: usize },
    /// No such stage, or a stage of another module type.
    #[error("stage {stage} is not a `{wanted}`, or this process has no such stage")]
    NoSuchModule { stage: usize, wanted: &'static str },
    /// No such layer, or a layer of another module type.
    #[error("layer {layer} is not a `{wanted}`, or the model is no list of layers (`Builder::layers`) with this index")]
    NoSuchLayer { layer: usize, wanted: &'static str },
}

burn_pipeline_plan::debug_as_text!(PipelineError);

/// Where a plan runs, if data-parallel replicas run it.
fn on_each(replicas: usize) -> String {
    if replicas == 1 { String::new() } else { format!(" on each of {replicas} data-parallel replicas") }
}

/// The state after a failed call, as text.
fn undone(dropped: bool) -> &'static str {
    match dropped {
        true => {
            "no weight was changed, and the gradients accumulated since the last step were dropped; the pipeline is \
             ready for the next call"
        }
        false => "nothing was changed; the pipeline is ready for the next call",
    }
}

impl PipelineError {
    /// The error of the rank that failed in this call, if any, whatever state it left.
    pub fn of_rank(&self) -> Option<&ExecuteError> {
        match self {
            PipelineError::Rank(error) => Some(error),
            PipelineError::HalfStepped(error) | PipelineError::Undone { source: error, .. } => Some(error),
            _ => None,
        }
    }

    /// Returns true if the gradients accumulated since the last step are gone.
    pub(crate) fn drops_gradients(&self) -> bool {
        matches!(self, PipelineError::Undone { dropped: true, .. } | PipelineError::HalfStepped(_))
    }

    /// The error in one line, without its place in the plan, for other ranks and later calls.
    pub(crate) fn sentence(&self) -> String {
        self.of_rank().map_or_else(|| self.to_string(), |of_rank| of_rank.cause().to_string())
    }
}
