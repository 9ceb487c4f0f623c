//! Why the program ended early.

use burn_pipeline::payload::BoundaryError;
use burn_pipeline::train::{BuildError, CheckpointError, PipelineError};
use pipeline_examples::corpus::TooShort;
use pipeline_examples::device::DeviceError;
use pipeline_examples::learning_rate::RateError;
use pipeline_examples::saved::OtherRun;
use std::io;
use std::path::{Path, PathBuf};

/// Why the program ended early.
#[derive(thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum FinetuneError {
    /// A file cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A file or folder cannot be written.
    #[error("{} cannot be written: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    /// The run would replace what it reads.
    #[error(
        "{flag} is in {}, which this run replaces; give another --out, or copy what {flag} names to a folder elsewhere",
        folder.display()
    )]
    Replaced { flag: &'static str, folder: PathBuf },
    /// The run would remove what another program wrote.
    #[error(
        "{} holds `{name}`, which this program did not write, so the folder is not replaced; give another --out, or \
         move the folder",
        folder.display()
    )]
    NotOwn { folder: PathBuf, name: String },
    /// The flag does something only while or after training.
    #[error("{flag} does nothing with --steps 0; train for at least one step, or leave it out")]
    NoSteps { flag: &'static str },
    /// The model is not one that this program supports.
    #[error("{}: {message}", path.display())]
    Config { path: PathBuf, message: String },
    /// The tokenizer cannot be used.
    #[error("the tokenizer {}: {message}", path.display())]
    Tokenizer { path: PathBuf, message: String },
    /// The tokenizer has more tokens than the model.
    #[error(
        "the tokenizer gives token {token}, and the model has {vocab}; use the tokenizer.json of the model's folder"
    )]
    Vocabulary { token: u32, vocab: usize },
    /// There is nothing to continue.
    #[error("--prompt is empty; give it at least one character")]
    NoPrompt,
    /// The sequences are longer than the model's window.
    #[error("{flag} asks for sequences of {tokens} tokens, and the model was made for {window}; use less")]
    Window { flag: &'static str, tokens: usize, window: usize },
    /// No projection has the name.
    #[error("--target {target} is no projection; there are {}", crate::options::PROJECTIONS.join(", "))]
    Target { target: String },
    /// The temperature is below 0.
    #[error("--temperature {0} must be at least 0, which takes the likeliest token")]
    Temperature(f64),
    /// The learning rate is invalid.
    #[error(transparent)]
    Rate(#[from] RateError),
    /// The text is too short.
    #[error(transparent)]
    Text(#[from] TooShort),
    /// The device is not available.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The pipeline cannot be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A step or an evaluation failed.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// The last stage's output has the wrong type.
    #[error(transparent)]
    Scores(#[from] BoundaryError),
    /// Weights or a checkpoint cannot be read or written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The checkpoint is of another run.
    #[error(transparent)]
    OtherRun(#[from] OtherRun),
    /// Standard output is closed.
    #[error("the output cannot be written: {0}")]
    Output(#[from] io::Error),
}

burn_pipeline::debug_as_text!(FinetuneError);

impl FinetuneError {
    pub(crate) fn reading(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| FinetuneError::Read { path, source }
    }

    pub(crate) fn writing(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| FinetuneError::Write { path, source }
    }
}
