//! What ranks are asked to do, and what they answer.

use crate::cost::LinkOverride;
use crate::execute::ExecuteError;
use crate::plan::{CheckedPlan, StageId};
use crate::stage::{AnyTensor, BatchChecks, EngineReport, MetadataMode, Microbatches, NamedWeight, StageMetadata};
use crate::train::checkpoint::{Checkpoint, CheckpointError, Parts, SavedStage};
use crate::train::plans::parts::Shares;
use crate::train::shared::SharedReport;
use crate::train::step::rank::{ApplyOutcome, BatchOutcome};
use std::any::Any;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// What a rank is asked to do. All ranks get the same commands in the same order.
#[derive(Clone)]
pub(crate) enum Command {
    Accumulate {
        shares: Arc<Shares>,
        batch: Arc<Microbatches>,
        began: Instant,
        seed: Option<u64>,
        /// Will the weights be stepped before the next batch?
        last: bool,
    },
    Apply {
        learning_rate: f64,
    },
    Evaluate {
        shares: Arc<Shares>,
        batch: Arc<Microbatches>,
        began: Instant,
        /// Does this process want the outputs?
        asks: bool,
    },
    Learn {
        plan: Arc<CheckedPlan>,
        zeros: Arc<[Microbatches]>,
    },
    FinishGradients,
    Gradients,
    Weights,
    Modules,
    Engines,
    MeasureLinks,
    Forget,
    /// This process refused the call.
    Refuse(String),
    NamedWeights,
    /// Tell all processes something.
    Tell(Arc<[u8]>),
    /// Write the stages' files of a checkpoint.
    Save {
        folder: Arc<Path>,
    },
    /// Write the whole model's weights into one file.
    Export {
        path: Arc<Path>,
    },
    /// Read a checkpoint and keep it aside.
    Offer {
        checkpoint: Arc<Checkpoint>,
        parts: Parts,
    },
    /// Adopt what was kept aside, or let go of it.
    Conclude {
        adopt: bool,
    },
}

/// What a rank answers.
pub(crate) enum Answer {
    Ready(Vec<StageFacts>, Vec<SharedReport>),
    Batch(BatchOutcome),
    Applied(ApplyOutcome),
    Tensors(Vec<(StageId, Vec<Option<AnyTensor>>)>),
    Modules(Vec<(StageId, Box<dyn Any + Send>)>),
    Engines(Vec<(StageId, EngineReport)>),
    Learned(MetadataMode, Vec<(StageId, StageMetadata)>),
    NamedWeights(Vec<(StageId, Vec<NamedWeight>)>),
    Saved(Result<Vec<SavedStage>, CheckpointError>),
    Exported(Result<(), CheckpointError>),
    Offered(Result<BTreeSet<usize>, CheckpointError>),
    Links(Vec<LinkOverride>),
    /// What a process has told.
    Told(Vec<u8>),
    /// A rank refused the call.
    Refused {
        rank: usize,
        message: String,
    },
    /// Ranks made different calls.
    Apart {
        rank: usize,
        theirs: String,
        others: String,
    },
    Done,
}

/// What a stage says of itself once it is built.
#[derive(Debug, Clone)]
pub(crate) struct StageFacts {
    pub(crate) stage: StageId,
    pub(crate) extras: Vec<&'static str>,
    pub(crate) has_loss: bool,
    /// Were its forms declared?
    pub(crate) declared: bool,
    pub(crate) takes: BatchChecks,
    pub(crate) weight_bytes: usize,
    /// Element types and shapes of its parameters, in visiting order.
    pub(crate) parameters: String,
    /// Paths of its parameters, each with a name in the whole model.
    pub(crate) names: Vec<(String, String)>,
}

/// A command's answers, with the rank that gives them: its own, or all ranks' where the others are processes.
pub(crate) type Reply = (usize, Result<Vec<Answer>, ExecuteError>);

impl Command {
    /// What a rank does that obeys it.
    pub(crate) fn doing(&self) -> &'static str {
        match self {
            Command::Accumulate { .. } => "running a training batch",
            Command::Apply { .. } => "stepping its weights",
            Command::Evaluate { .. } => "running an evaluation",
            Command::Learn { .. } => "learning its stages' metadata",
            Command::FinishGradients => "finishing its gradients",
            Command::Gradients | Command::Weights | Command::Modules | Command::Engines => "reading its stages",
            Command::MeasureLinks => "measuring its links",
            Command::Forget => "forgetting its gradients",
            Command::Refuse(_) | Command::Tell(_) => "telling the other processes",
            Command::NamedWeights => "reading its stages",
            Command::Save { .. } => "writing a checkpoint",
            Command::Export { .. } => "writing the model",
            Command::Offer { .. } | Command::Conclude { .. } => "reading a checkpoint",
        }
    }

    /// What it is, for comparing the calls of processes.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Command::Accumulate { .. } => "training",
            Command::Apply { .. } => "a step of the weights",
            Command::Evaluate { .. } => "evaluation",
            Command::Learn { .. } => "learning of metadata",
            Command::FinishGradients => "finishing of gradients",
            Command::Gradients => "reading of gradients",
            Command::Weights => "reading of weights",
            Command::Modules => "reading of modules",
            Command::Engines => "reading of engines",
            Command::MeasureLinks => "measuring of links",
            Command::Forget => "forgetting of gradients",
            Command::NamedWeights => "reading of named weights",
            Command::Save { .. } => "writing of a checkpoint",
            Command::Export { .. } => "export of the model",
            Command::Offer { .. } | Command::Conclude { .. } => "reading of a checkpoint",
            Command::Refuse(_) => "refusal",
            Command::Tell(_) => "telling of what was measured, chosen or written",
        }
    }
}
