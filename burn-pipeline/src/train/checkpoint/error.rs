//! Why a checkpoint could not be written or read. If loading fails with one of these, the model has not changed.

use crate::train::error::PipelineError;
use std::io;
use std::path::{Path, PathBuf};

/// Why a checkpoint could not be written or read.
#[derive(thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum CheckpointError {
    /// The file system refused.
    #[error("{doing} {} failed: {source}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    /// The folder holds no checkpoint.
    #[error("there is no checkpoint in {}", root.display())]
    None { root: PathBuf },
    /// A file of the checkpoint is not there.
    #[error("{} is missing, so this checkpoint cannot be read; an earlier one may be intact", path.display())]
    Missing { path: PathBuf },
    /// A file is not what was written.
    #[error("{} is damaged: {what}; an earlier checkpoint may be intact", path.display())]
    Damaged { path: PathBuf, what: String },
    /// Another version of the format.
    #[error("{} is of format version {found}, but this library reads version {reads}", path.display())]
    Version { path: PathBuf, found: u32, reads: u32 },
    /// Two stages call different parameters the same.
    #[error(
        "stages {first} and {second} both claim a parameter named `{name}`; say where their layers stand in the model with `StageBox::named`"
    )]
    SameName { name: String, first: usize, second: usize },
    /// A parameter of the model, at this stage of a pipeline, is not in the checkpoint.
    #[error("the checkpoint holds no parameter named `{name}`{}, which the model has", in_stage(stage))]
    MissingParameter { name: String, stage: Option<usize> },
    /// Parameters of the checkpoint are not in the model.
    #[error("the checkpoint holds {} parameter(s) that the model does not have: {}", names.len(), names.join(", "))]
    UnknownParameters { names: Vec<String> },
    /// A parameter has another shape or element type.
    #[error("`{name}` was saved as {saved}, but the model's is {wanted}")]
    Structure { name: String, saved: String, wanted: String },
    /// Copies of a parameter that the model holds once are not equal.
    #[error("the model holds `{first}` and `{second}` as one parameter, but they were saved with different values")]
    Copies { first: String, second: String },
    /// A store of pretrained weights cannot be read.
    #[error("store {store} of the pretrained weights, counted from 0, cannot be read: {message}")]
    Store { store: usize, message: String },
    /// Pretrained weights and the model do not fit.
    #[error(
        "the pretrained weights do not fit the model{}{}{}",
        listed(
            "not stored (rename with `Names::renamed`, choose an adapter that knows the other program's names and layouts with `Pretrained::adapter`, or keep the initial values with `Pretrained::optional`)",
            missing
        ),
        listed("stored in another form (an adapter changes layouts: `Pretrained::adapter`)", mismatched),
        listed("not in the model (leave out with `Pretrained::ignored`)", unused)
    )]
    Pretrained { missing: Vec<String>, mismatched: Vec<String>, unused: Vec<String> },
    /// The checkpoint has no optimizer state, and the pipeline has an optimizer.
    #[error(
        "the checkpoint holds no optimizer state; load its weights alone, or save from a pipeline with an optimizer"
    )]
    NoOptimizerState,
    /// The state of an optimizer cannot be taken out or put back.
    #[error("{0}")]
    OptimizerState(String),
    /// Gradients were gathered that no step has used; a checkpoint would lose them.
    #[error("gradients were gathered since the last step, and a checkpoint holds none; step or take them first")]
    MidStep,
    /// A failure left some ranks with weights from before a step and others with those from after it.
    #[error(
        "a failure left some ranks with weights from before a step and others with those from after it, and the folder holds checkpoints that are whole; load one (`Pipeline::load`), or save into an empty folder"
    )]
    HalfStepped,
    /// An element type that the format does not have.
    #[error("`{name}` has element type {dtype}, which safetensors cannot hold")]
    ElementType { name: String, dtype: String },
    /// The value that the caller saved beside the model cannot be written, or not be read as this type.
    #[error("the value saved beside the model: {0}")]
    Beside(String),
    /// A tensor could not be read from its device.
    #[error("reading `{name}` from its device failed: {message}")]
    Device { name: String, message: String },
    /// Processes do not see the same folder.
    #[error(
        "{} was made for this checkpoint, but this process does not see it; save into a folder on a file system that all processes share",
        folder.display()
    )]
    NotShared { folder: PathBuf },
    /// A rank in another process could not do its part.
    #[error("rank {rank}: {message}")]
    Elsewhere { rank: usize, message: String },
    /// A rank failed.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
}

burn_pipeline_plan::debug_as_text!(CheckpointError);

fn in_stage(stage: &Option<usize>) -> String {
    stage.map(|stage| format!(" (stage {stage})")).unwrap_or_default()
}

/// A part of a message: "; not stored:", and a name a line.
fn listed(what: &str, names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!("; {what}:\n  {}", names.join("\n  ")) }
}

impl CheckpointError {
    /// Wraps an error of the file system.
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| match source.kind() {
            io::ErrorKind::NotFound if doing == READING => CheckpointError::Missing { path },
            _ => CheckpointError::Io { doing, path, source },
        }
    }

    /// What a rank in another process said.
    pub(super) fn elsewhere(rank: usize, message: String) -> Self {
        CheckpointError::Elsewhere { rank, message }
    }

    pub(super) fn damaged(path: &Path, what: impl Into<String>) -> Self {
        CheckpointError::Damaged { path: path.to_owned(), what: what.into() }
    }
}

/// While reading, a file that does not exist is a missing part of a checkpoint.
pub(super) const READING: &str = "reading";
