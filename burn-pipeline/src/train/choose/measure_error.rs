//! Errors of measuring a model.

use crate::stage::{MicrobatchError, StageError};
use crate::train::features::NotTogether;
use burn_pipeline_plan::cost::{PartitionError, ProfileError};

/// Why layers or stages could not be measured. Their numbers count from 0.
#[derive(Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum MeasureError {
    /// No stages were given.
    #[error(
        "no model was given; call `Builder::layers`, or `Builder::stages` with a factory that can make one layer per \
         stage"
    )]
    NoStages,
    /// A layer refused the previous output, or its device reported an error.
    #[error("layer {layer} of {layers}: {source}")]
    Stage { layer: usize, layers: usize, source: StageError },
    /// A layer's code panicked.
    #[error("layer {layer} of {layers}: its code panicked: {message}")]
    Panic { layer: usize, layers: usize, message: String },
    /// The microbatch lacks an input of a layer.
    #[error(transparent)]
    Batch(#[from] MicrobatchError),
    /// There are no layers, or too many.
    #[error(transparent)]
    Layers(#[from] PartitionError),
    /// Measuring does not go with a feature of the builder.
    #[error(transparent)]
    NotTogether(#[from] NotTogether),
    /// The builder's plan, which defines the stages, cannot be built.
    #[error("the stages to measure are those of the builder's plan: {0}")]
    Plan(String),
    /// The measurements do not give a profile.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The compute threads cannot be started.
    #[error("the compute threads cannot be started: {0}")]
    Threads(String),
}

burn_pipeline_plan::debug_as_text!(MeasureError);
