//! Errors that end a training. Burn's loop gets them as a failed worker: [`burn_train::TrainingError::Workers`].

use burn::tensor::DType;
use burn_pipeline::execute::ExecuteError;
use burn_pipeline::link::LinkError;
use burn_pipeline::payload::BoundaryError;
use burn_pipeline::train::{BuildError, PipelineError};
use burn_train::TrainingError;
use burn_train::train::WorkerFailure;

/// Why a pipeline ended a training.
#[derive(thiserror::Error)]
pub(crate) enum LearnError {
    #[error("the pipeline cannot be built: {0}")]
    Build(#[from] BuildError),
    #[error("{0}")]
    Pipeline(#[from] PipelineError),
    #[error("the last stage's output is not a `PipelineModel::LastOutput`: {0}")]
    Output(#[from] BoundaryError),
    #[error(
        "stage {stage} holds `{path}`, which is no parameter of the model; build stages from clones of the model's \
         layers (`PipelineModel::stage`), not from new layers"
    )]
    Foreign { stage: usize, path: String },
    #[error(
        "no stage holds `{name}`, so it would not be trained; give it to a stage (`PipelineModel::stage`), or freeze \
         it (`no_grad`)"
    )]
    Missing { name: String },
    #[error(
        "stage {stage} holds `{path}` on {device}, but its rank computes on {rank}; move the part there \
         (`fork(&at.device)` in `PipelineModel::stage`), or give the pipeline the model's device (`Builder::devices`)"
    )]
    Device { stage: usize, path: String, device: String, rank: String },
    #[error(
        "stage {stage} holds `{path}` in {held:?}, but the learner's model has it in {own:?}, so its optimizer cannot \
         step it; create the model in f32 and build stages from clones of its layers: for half precision, the pipeline \
         rounds them (`Builder::precision`)"
    )]
    ElementType { stage: usize, path: String, held: DType, own: DType },
    #[error(
        "`{first}` and `{second}` are one parameter, of which Burn's optimizers step the first path only; train such a \
         model with `Pipeline::step`, or hold the parameter at one path"
    )]
    Twice { first: String, second: String },
    #[error(
        "no parameter of the model is trained; create the model on a device with autodiff (`device.autodiff()`), and \
         leave at least one parameter unfrozen"
    )]
    NothingTrained,
    #[error(
        "`{name}` is computed from trained parameters but counts as frozen, so it is unclear whether to train it; \
         compute it with `Param::map`, which keeps the setting, or detach its value (`Tensor::detach`) and call \
         `Param::set_require_grad`"
    )]
    Unclear { name: String },
    #[error(
        "the pipeline is vocabulary parallel (`Builder::vocabulary`), which does not work under Burn's `Learner`, \
         because it steps whole weights; leave it out, or train with `Pipeline::step`"
    )]
    Vocabulary,
    #[error("the processes cannot start together: {0}")]
    Link(#[from] LinkError),
    #[error(
        "rank 0's learner cannot be loaded: {0}; all processes must create the same model, optimizer and scheduler"
    )]
    State(String),
    #[error("this strategy's link was used by an earlier training; connect a new one for each training")]
    LinkUsed,
    #[error(
        "rank {rank} is {theirs}, while rank 0 is {first}; all processes must run the same program, with the same \
         optimizer and scheduler, on devices of one kind"
    )]
    Diverged { rank: usize, theirs: String, first: String },
}

burn_pipeline::debug_as_text!(LearnError);

impl LearnError {
    /// The rank that failed; 0 if no rank failed.
    fn rank(&self) -> usize {
        match self {
            Self::Pipeline(error) if error.of_rank().is_some() => error.of_rank().map_or(0, ExecuteError::rank),
            Self::Pipeline(PipelineError::Silent { rank, .. }) => *rank,
            Self::Pipeline(PipelineError::Closed(failure) | PipelineError::Uneven(failure))
            | Self::Link(LinkError::Peer(failure) | LinkError::Interrupted(failure)) => failure.rank,
            Self::Pipeline(PipelineError::Elsewhere { rank, .. } | PipelineError::Diverged { rank, .. })
            | Self::Diverged { rank, .. } => *rank,
            _ => 0,
        }
    }
}

impl From<LearnError> for TrainingError {
    fn from(error: LearnError) -> Self {
        TrainingError::Workers(vec![WorkerFailure { device_id: error.rank(), message: error.to_string() }])
    }
}
