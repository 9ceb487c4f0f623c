//! Why a pipeline cannot be built, and why a call on it failed. Each message says what to do.
//!
//! The two stand together since each can be the other's cause: ranks fail while a pipeline is built, and a batch may
//! need a plan that cannot be built.

use crate::cost::{PartitionError, ProfileError};
use crate::execute::ExecuteError;
use crate::link::{Activity, Failure};
use crate::pass::PassError;
use crate::plan::{CheckError, PlanError, StageId};
use crate::schedule::ScheduleError;
use crate::stage::{BoundaryError, MicrobatchError, PayloadSpec, ReplaceError, StageError};
use crate::train::non_finite::NonFinite;
use burn::module::ParamGroup;

/// Why a pipeline cannot be built, or a plan not be made for a batch.
#[derive(Clone, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
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
    Ranks { ranks: usize, linked: usize },
    /// The link joins another number of ranks than all replicas and groups have together.
    #[error(
        "the plan has {ranks} rank(s), which are {all} with all data-parallel replicas and the ranks of each group, and the link joins {linked}; start {all} processes"
    )]
    Replicas { ranks: usize, all: usize, linked: usize },
    /// Sharding needs at least two replicas.
    #[error("parameters are to be sharded over 1 replica; give at least 2 (`Builder::data_parallel`)")]
    NothingToShardOver,
    /// At least one replica is needed.
    #[error("0 data-parallel replicas were asked for; give at least 1 (`Builder::data_parallel`)")]
    NoReplicas,
    /// No rank is to hold a stage.
    #[error("0 ranks are to hold each stage; give at least 1 (`Builder::tensor_parallel`)")]
    NoMembers,
    /// Neither one size for all pipeline ranks nor one for each.
    #[error(
        "{sizes} sizes of groups were given for {ranks} pipeline rank(s); give one, or one a pipeline rank (`Builder::tensor_parallel`)"
    )]
    GroupSizes { sizes: usize, ranks: usize },
    /// Groups between which nothing can be re-cut.
    #[error(
        "{senders} rank(s) hold stage {from} together and {receivers} hold stage {to}, which gets something from it; one of the numbers must divide the other, so change them (`Builder::tensor_parallel`)"
    )]
    GroupBoundary { from: StageId, to: StageId, senders: usize, receivers: usize },
    /// Groups of different sizes that hold the two copies of a stage.
    #[error(
        "{first} rank(s) hold the first copy of stage {stage} together and {second} the second; give the ranks of both one size (`Builder::tensor_parallel`), or choose a schedule with one copy of each stage"
    )]
    GroupCopies { stage: usize, first: usize, second: usize },
    /// Something that cannot be combined with stages that several ranks hold together.
    #[error("{what} does not work with `Builder::tensor_parallel` yet; leave one of them out")]
    TensorParallel { what: &'static str },
    /// The plan spreads other layers of the vocabulary over all ranks than those of which ranks have pieces.
    #[error(
        "{plan} spreads {planned} over all ranks, but `Builder::vocabulary` gives {given}; give it the same layers, or a plan without `S`, `T`, `IF` and `IB`"
    )]
    Vocabulary { plan: String, planned: String, given: String },
    /// A vocabulary without layers.
    #[error("`Builder::vocabulary` was given neither an embedding nor a head; give it one of them, or leave it out")]
    EmptyVocabulary,
    /// Something that cannot be combined with a vocabulary that is spread.
    #[error("{what} does not work with `Builder::vocabulary` yet; leave one of them out")]
    WithVocabulary { what: &'static str },
    /// A loss on the last stage, where the loss comes with the head.
    #[error(
        "stage {stage} was built with a loss, but the head is spread and comes after it, with the cross entropy; build it with `StageBox::new`"
    )]
    LossBeforeHead { stage: usize },
    /// A skip edge is not valid, or a plan that is lowered already lacks it.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// No stages were given.
    #[error("no stages were given; call `Builder::stages`")]
    NoStages,
    /// No schedule and no plan was given.
    #[error("no schedule and no plan was given; call `Builder::schedule` or `Builder::plan`")]
    NoSchedule,
    /// The number of devices is neither one nor the number of ranks.
    #[error("{devices} device(s) were given for {ranks} ranks; give one, or one a rank")]
    Devices { devices: usize, ranks: usize },
    /// A device's driver or hardware is missing, or does not work.
    #[error(
        "{device} does not answer: {message}; install its driver (NVIDIA's for CUDA; one for Vulkan, Metal or DirectX 12 for wgpu), or choose another device"
    )]
    NoDevice { device: String, message: String },
    /// The plan was given for another number of microbatches.
    #[error(
        "the plan runs {planned} microbatches, but the batch was cut into {wanted}; give a batch of at least {planned} samples, or a schedule instead of a plan"
    )]
    FixedPlan { planned: usize, wanted: usize },
    /// The schedule places stages elsewhere for this number of microbatches.
    #[error(
        "{schedule} places stages differently for {microbatches} microbatches, and stages cannot move; keep the number of microbatches"
    )]
    Moved { schedule: String, microbatches: usize },
    /// Merged weight gradients are not added in microbatch order.
    #[error(
        "`merge_weights` adds gradients in another order than `Accumulation::Ordered` asks for; choose one of them"
    )]
    MergedAndOrdered,
    /// Products of `bf16` where they would not be faster.
    #[error(
        "`Builder::bf16_products` needs a processor with AVX512-BF16 (`avx512_bf16` in /proc/cpuinfo) and the device Flex, and {device} here has no such products; leave it out"
    )]
    NoBf16 { device: String },
    /// Merged weight gradients are not compiled.
    #[error("`merge_weights` multiplies in `f32`, and `Builder::bf16_products` asks for `bf16`; choose one of them")]
    MergedAndRounded,
    /// A declared group of parameters matches nothing.
    #[error(
        "{group:?} matches no parameter of the model, whose names are {names}, ..; groups match names in the whole model (`StageBox::named`), so correct the group or the names"
    )]
    EmptyGroup { group: Box<ParamGroup>, names: String },
    /// No stage has a parameter in a declared list of layers.
    #[error(
        "`Names::layers_from` was given the list `{list}`, and no stage has a parameter there; the stages' paths are {paths}, ..; give the path of the list inside the stage's module"
    )]
    EmptyList { list: String, paths: String },
    /// Two stages whose names were given call different parameters the same.
    #[error(
        "stages {first} and {second} both claim a parameter named `{name}`; say where their layers stand in the model with `StageBox::named`, or declare it shared (`Builder::share`)"
    )]
    SameName { name: String, first: usize, second: usize },
    /// Gradients cannot be clipped to this norm.
    #[error("gradients cannot be clipped to the norm {norm}; give `Builder::clip_norm` a number above 0")]
    ClipNorm { norm: f64 },
    /// A loss on a stage that is not the last, where it would never be computed.
    #[error(
        "stage {stage} was built with a loss, but stage {last} is the last, and only its loss is computed; build the others with `StageBox::new` (`StageContext::is_last` tells them apart)"
    )]
    LossInside { stage: usize, last: usize },
    /// The network given to `Builder::delayed` is not valid.
    #[error(transparent)]
    Delay(#[from] ProfileError),
    /// The profile of another model, or of other stages.
    #[error(
        "the profile given to `Builder::planned_with` does not fit the plan: {0}; measure these stages (`Builder::measure_memory`)"
    )]
    Planned(String),
    /// Stages that were built of the shares of other numbers of layers: some layers would be in no stage, or in two.
    #[error(
        "stage {stage} was built of its share of {layers} layers and stage {differs} of {others}; `StageContext::layers` must be given the same number on all ranks and stages"
    )]
    OtherLayers { stage: usize, layers: String, differs: usize, others: String },
    /// A stage gives another type than a stage takes that gets it.
    #[error(
        "stage {from} gives {given}, but stage {to}, which gets it, takes {taken}; `Stage::Output` of the one must be `Stage::Input` of the other"
    )]
    Boundary { from: StageId, to: StageId, given: String, taken: String },
    /// The layers cannot be cut into the stages.
    #[error(transparent)]
    Layers(#[from] PartitionError),
    /// Stages could not be made.
    #[error("building the stages failed: {0}")]
    Stages(Box<PipelineError>),
}

burn_pipeline_plan::debug_as_text!(BuildError);

/// Why a call on a pipeline failed.
#[derive(Clone, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum PipelineError {
    /// The batch cannot be cut, or does not hold what stages read. Nothing was run; the pipeline is as before.
    #[error(transparent)]
    Batch(#[from] MicrobatchError),
    /// What the batch holds is not what a stage takes; `got` is its spec. Nothing was run; the pipeline is as before.
    #[error("stage {stage} does not take this batch: {source}; the batch holds {got}")]
    Refused { stage: StageId, source: StageError, got: PayloadSpec },
    /// What the batch holds is not what a layer of the vocabulary takes that is spread: the embedding of its input, the head of its target. Nothing
    /// was run; the pipeline is as before.
    #[error(
        "the {layer} that is spread (`Builder::vocabulary`) does not take this batch: {source}; the batch holds {got}"
    )]
    RefusedIds { layer: &'static str, source: Box<BoundaryError>, got: PayloadSpec },
    /// No plan can be made for the batch. Nothing was run; the pipeline is as before.
    #[error(transparent)]
    Plan(Box<BuildError>),
    /// A training batch without a target. Nothing was run.
    #[error("a training step needs a target; give the batch one with `Batch::target`")]
    NoTarget,
    /// A last stage without a loss. Nothing was run.
    #[error(
        "stage {last}, the last of {} on {ranks} rank(s), has no loss; give it one with `StageBox::with_loss`, or, if the model goes on after it, give the schedule as many ranks and chunks as the model has stages (`Size`)",
        last + 1
    )]
    NoLoss { last: usize, ranks: usize },
    /// The plan runs forwards alone. Nothing was run.
    #[error("{schedule} runs no backwards, so it cannot train; choose another schedule, or call `eval`")]
    ForwardOnly { schedule: String },
    /// A loss or a gradient is NaN or infinite. Weights are as before; the gradients gathered since the
    /// last step were dropped on all ranks.
    #[error(
        "step {step}, {source}; the weights are as before, and the gradients gathered for this step were dropped: look at the learning rate and the microbatch's data, or go on without such steps (`Builder::on_non_finite`)"
    )]
    NonFinite { step: u64, source: NonFinite },
    /// No parameter of the model has a gradient. Nothing was changed; the pipeline is as before.
    #[error(
        "step {step} would train nothing: no parameter of the model has a gradient; thaw what is to be trained (a group that `Module::unfreeze_group` was given may match other names), or let the loss depend on it. A learning rate of 0 says that nothing is to be trained, and `accumulate` computes gradients alone"
    )]
    TrainsNothing { step: u64 },
    /// Another process refused the call. Nothing was run; the pipeline is as before.
    #[error("rank {rank} refused this call, so no rank ran it: {message}")]
    Elsewhere { rank: usize, message: String },
    /// The processes did not make the same call. Nothing was run.
    #[error("rank {rank} is {theirs}, while others are {others}; all processes must make the same calls")]
    Diverged { rank: usize, theirs: String, others: String },
    /// A rank failed, and no weight was changed; the pipeline is ready for the next call. With `dropped`, what was gathered since the last
    /// step is gone, [`Progress`](crate::train::Progress) is that of the last step, and running statistics are as they were then: the
    /// same batches may be given again, or others. [`ExecuteError::cause`] is the error without its place in the plan.
    #[error("{source}\n{}", undone(*.dropped))]
    Undone { source: Box<ExecuteError>, dropped: bool },
    /// A rank failed while weights were changed, so some ranks may have weights from before the step and others those from after it. Weights can
    /// be read and exported, and saved into a folder without checkpoints; a checkpoint that is loaded makes the pipeline ready again.
    #[error(
        "{0}\nsome ranks may have weights from before the step and others those from after it: load a checkpoint (`Pipeline::load`) before the next step; until then weights can be read and exported"
    )]
    HalfStepped(Box<ExecuteError>),
    /// An earlier failure came while weights were changed. Nothing was run.
    #[error(
        "rank {} failed while weights were changed ({}), so some ranks may have weights from before the step and others those from after it; load a checkpoint (`Pipeline::load`) first", .0.rank, .0.message
    )]
    Uneven(Failure),
    /// A rank failed; the pipeline is closed. [`ExecuteError::cause`] is the error without its place in the plan.
    #[error("{0}")]
    Rank(ExecuteError),
    /// A rank did not answer in time, in a training step or another call; the pipeline is closed.
    #[error(
        "{}rank {rank} did not answer within {seconds:.1} s: it {activity}; the pipeline is closed, build it anew, or raise `Builder::timeout`",
        step.map(|step| format!("step {step}, ")).unwrap_or_default()
    )]
    Silent { rank: usize, step: Option<u64>, seconds: f64, activity: Activity },
    /// An earlier failure closed the pipeline.
    #[error("the pipeline was closed by an earlier failure of rank {}: {}; build it anew", .0.rank, .0.message)]
    Closed(Failure),
    /// A stage keeps its module. Nothing was changed; the pipeline is as before.
    #[error("stage {stage} keeps its module: {source}")]
    Replace { stage: usize, source: ReplaceError },
    /// Stages that several ranks hold together. Nothing was run; the pipeline is as before.
    #[error(
        "{what} does not work yet where several ranks hold a stage together (`Builder::tensor_parallel`); build without it"
    )]
    TensorParallel { what: &'static str },
    /// A vocabulary that is spread. Nothing was run; the pipeline is as before.
    #[error(
        "{what} does not work yet where the vocabulary is spread over all ranks (`Builder::vocabulary`); build without it"
    )]
    Vocabulary { what: &'static str },
    /// Weights that are spread over data-parallel replicas. Nothing was run; the pipeline is as before.
    #[error(
        "stage {stage}: {what} does not work yet where weights are spread over data-parallel replicas (`StageContext::replicas`); build without it"
    )]
    Spread { stage: StageId, what: &'static str },
    /// Replicas that exchange tensors in every microbatch have unequal shares of a batch. Nothing was run; the pipeline is as before.
    #[error(
        "{microbatches} microbatches cannot be shared evenly by {replicas} data-parallel replicas, which exchange tensors in every microbatch of stage {stage}; give batches of enough samples for a multiple of {replicas} microbatches"
    )]
    UnevenReplicas { stage: StageId, microbatches: usize, replicas: usize },
    /// No such stage, or a stage of another module type.
    #[error("stage {stage} is not a `{wanted}`, or this process has no such stage")]
    NoSuchModule { stage: usize, wanted: &'static str },
}

burn_pipeline_plan::debug_as_text!(PipelineError);

/// What a failed call left.
fn undone(dropped: bool) -> &'static str {
    match dropped {
        true => {
            "no weight was changed, and the gradients gathered since the last step were dropped; the pipeline is ready for the next call"
        }
        false => "nothing was changed; the pipeline is ready for the next call",
    }
}

impl PipelineError {
    /// The error of the rank that failed, if one did in this call, whatever it has left.
    pub fn of_rank(&self) -> Option<&ExecuteError> {
        match self {
            PipelineError::Rank(error) => Some(error),
            PipelineError::HalfStepped(error) | PipelineError::Undone { source: error, .. } => Some(error),
            _ => None,
        }
    }

    /// Returns true if what was gathered since the last step is gone.
    pub(crate) fn drops_gradients(&self) -> bool {
        matches!(self, PipelineError::Undone { dropped: true, .. } | PipelineError::HalfStepped(_))
    }

    /// The error in one line, without its place in the plan: what other ranks are told, and later calls.
    pub(crate) fn sentence(&self) -> String {
        self.of_rank().map_or_else(|| self.to_string(), |of_rank| of_rank.cause().to_string())
    }
}
