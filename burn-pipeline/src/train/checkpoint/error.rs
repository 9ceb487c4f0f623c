//! Errors of writing and reading checkpoints. If loading fails with one of these, the model is unchanged.

use crate::train::error::PipelineError;
use std::io;
use std::path::{Path, PathBuf};

/// Why a checkpoint could not be written or read.
#[derive(thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum CheckpointError {
    /// A file system operation failed.
    #[error("{doing} {} failed: {source}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    /// The folder holds no checkpoint.
    #[error("there is no checkpoint in {}", root.display())]
    None { root: PathBuf },
    /// Another job saves into the folder.
    #[error("{by} has {}; give each job a folder of its own, or end the other job", root.display())]
    InUse { root: PathBuf, by: String },
    /// A file of the checkpoint is missing.
    #[error(
        "{} is missing, so this checkpoint cannot be read; an earlier one may be intact (`Checkpoints::latest_intact`)",
        path.display()
    )]
    Missing { path: PathBuf },
    /// A file's contents are not what was written.
    #[error(
        "{} is damaged: {what}; an earlier checkpoint may be intact (`Checkpoints::latest_intact`)",
        path.display()
    )]
    Damaged { path: PathBuf, what: String },
    /// The checkpoint has another format version.
    #[error("{} is of format version {found}, but this library reads version {reads}", path.display())]
    Version { path: PathBuf, found: u32, reads: u32 },
    /// Copies of a stage are no longer equal.
    #[error(
        "ranks {first} and {other} hold copies of stage {stage} that now differ, so they cannot be saved; resume from \
         an earlier checkpoint, and change weights alike on all ranks (optimizers, `Stage::after_step`)"
    )]
    Drifted { stage: usize, first: usize, other: usize },
    /// Two stages use one name for different parameters.
    #[error(
        "stages {first} and {second} both claim a parameter named `{name}`; set the position of their layers in the \
         model with `StageBox::named`"
    )]
    SameName { name: String, first: usize, second: usize },
    /// A parameter of the model, on this stage, is not in the checkpoint.
    #[error("the checkpoint holds no parameter named `{name}`{}, which the model has", in_stage(stage))]
    MissingParameter { name: String, stage: Option<usize> },
    /// Parameters of the checkpoint are not in the model.
    #[error("the checkpoint holds {} parameter(s) that the model does not have: {}", names.len(), names.join(", "))]
    UnknownParameters { names: Vec<String> },
    /// A parameter was saved with another shape or element type.
    #[error("`{name}` was saved as {saved}, but the model's is {wanted}")]
    Structure { name: String, saved: String, wanted: String },
    /// The saved copies of a parameter that the model holds once, or ties, differ.
    #[error(
        "the model holds `{first}` and `{second}` as one parameter, but they were saved with different values (or an \
         optimizer's state that differs); store one of them, or load them into a model that does not tie them \
         (`Builder::share`)"
    )]
    Copies { first: String, second: String },
    /// A store of pretrained weights cannot be read.
    #[error("store {store} of the pretrained weights, counted from 0, cannot be read: {message}")]
    Store { store: usize, message: String },
    /// Pretrained weights and the model do not fit.
    #[error(
        "the pretrained weights do not fit the model{}{}{}",
        listed(
            "not stored (rename with `Pretrained::rename` or `Names::renamed`, set an adapter for the other program's \
             names and layouts with `Pretrained::adapter`, or keep the initial values with `Pretrained::optional`)",
            missing
        ),
        listed("stored with another shape or type (an adapter changes layouts: `Pretrained::adapter`)", mismatched),
        listed(
            "not in the model (leave out with `Pretrained::ignored`; for adapters, make the model's layers with \
             `Module::apply_lora`)",
            unused
        )
    )]
    Pretrained { missing: Vec<String>, mismatched: Vec<String>, unused: Vec<String> },
    /// A rule of pretrained weights cannot be applied.
    #[error("the rule that {rule} (`Pretrained`): {message}")]
    Rule { rule: String, message: String },
    /// A parameter's element type cannot hold a value that is stored for it.
    #[error(
        "a value of `{name}` is beyond what {dtype} holds; instead of f16 use bf16 or f32 (`Builder::precision`, and \
         `Precision::keep` for single parameters), and instead of an integer type a wider one"
    )]
    Range { name: String, dtype: String },
    /// What is said of stored adapters cannot be read, or asks for what the model does not compute.
    #[error("the adapters of {} cannot be used: {what}", path.display())]
    Adapters { path: PathBuf, what: String },
    /// An adapter of the model has another rank or scale.
    #[error(
        "the {what} of the adapter `{name}` is {own} in the model, and {said} by `adapter_config.json`: make the \
         model's adapters with the rank and alpha of `Adapters::read` (`Lora::new`), and export them with those with \
         which they were made"
    )]
    AdapterDiffers { name: String, what: &'static str, own: f64, said: f64 },
    /// Parameters that are no adapters were trained or changed, and would not be written.
    #[error(
        "these parameters are trained, or are no longer what was loaded, and a file of adapters alone would lack them: \
         {}; freeze them before the training (`Module::freeze`), or write all weights (`Export::merged`)",
        names.join(", ")
    )]
    LeftOut { names: Vec<String> },
    /// The adapter of pretrained weights changed no tensor.
    #[error(
        "the adapter (`Pretrained::adapter`) changed no tensor; it sees the parameters' names in the whole model, for \
         example `{shown}`; leave it out if nothing has to change"
    )]
    IdleAdapter { shown: String },
    /// Adapters and their base were loaded by different rules.
    #[error(
        "the rotary rows of `{name}` would be {base}, and those of its adapter {adapter}; give both stores \
         the same rule (`Pretrained::halves_to_pairs` or `pairs_to_halves`), after the renames"
    )]
    Unturned { name: String, base: String, adapter: String },
    /// The base of a checkpoint is not what it was.
    #[error(
        "the checkpoint leaves out what its base in {} holds, and that cannot be used: {what}; put the base back, or \
         use a base in a folder of its own (`Checkpoints::over`)", base.display()
    )]
    Base { base: PathBuf, what: String },
    /// The model does not have the pretrained weights that a checkpoint leaves out.
    #[error("the checkpoint was saved without the pretrained weights of {stores}, among them `{name}`: {what}")]
    LeftToModel { stores: String, name: String, what: String },
    /// No pretrained weights were loaded that a checkpoint could leave out.
    #[error(
        "this pipeline got no pretrained weights that a checkpoint could leave out; load them first \
         (`Pipeline::load_pretrained`), or save without `Checkpoints::over_pretrained`"
    )]
    NothingLoaded,
    /// The checkpoint has no optimizer state, and the pipeline has an optimizer.
    #[error(
        "the checkpoint holds no optimizer state; load only its weights, or save from a pipeline with an optimizer"
    )]
    NoOptimizerState,
    /// The state of an optimizer cannot be read or restored.
    #[error("{0}")]
    OptimizerState(String),
    /// There are unapplied gradients, which a checkpoint would lose.
    #[error("gradients were accumulated since the last step, but a checkpoint holds none; step or take them first")]
    MidStep,
    /// A failure left some ranks with weights from before a step and others from after it.
    #[error(
        "a failure left some ranks with weights from before a step and others with those from after it, and the folder \
         holds good checkpoints; load one (`Pipeline::load`), or save into an empty folder"
    )]
    HalfStepped,
    /// The format does not have this element type.
    #[error("`{name}` has element type {dtype}, which safetensors cannot hold")]
    ElementType { name: String, dtype: String },
    /// The caller's value beside the model cannot be written, or cannot be read as this type.
    #[error("the value saved beside the model: {0}")]
    Beside(String),
    /// A tensor could not be read from its device.
    #[error("reading `{name}` from its device failed: {message}")]
    Device { name: String, message: String },
    /// Processes do not see the same folder.
    #[error(
        "{} was created for this checkpoint, but this process does not see it; save into a folder on a file system \
         that all processes share",
        folder.display()
    )]
    NotShared { folder: PathBuf },
    /// A rank in another process failed to do its part.
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

/// A part of a message: "; not stored:", and one name per line.
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

    /// An error of a rank in another process.
    pub(super) fn elsewhere(rank: usize, message: String) -> Self {
        CheckpointError::Elsewhere { rank, message }
    }

    pub(super) fn damaged(path: &Path, what: impl ToString) -> Self {
        CheckpointError::Damaged { path: path.to_owned(), what: what.to_string() }
    }
}

/// The operation in which a file that does not exist is a missing part of a checkpoint.
pub(super) const READING: &str = "reading";
