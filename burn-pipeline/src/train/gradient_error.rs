//! Why a report has no such gradient of its batch. Each message says what to do.

use crate::payload::BoundaryError;

/// Why a report has no such gradient of its batch. Tensors count from 0.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum GradientError {
    /// They were not requested.
    #[error("gradients of the batch are not computed; build the pipeline with `Builder::input_gradients(true)`")]
    Off,
    /// This process does not get them.
    #[error(
        "gradients of the batch are sent only to processes with a copy of the first stage, and this one has none; read \
         the report of one that has"
    )]
    Elsewhere,
    /// No stage reads the extra.
    #[error("no stage reads the extra `{name}`, so it has no gradient; check the name (`Stage::extras`)")]
    NotRead { name: String },
    /// No tensor can have a gradient.
    #[error("{what} holds no float tensor, and integers have no gradient; give the model floats, such as embeddings")]
    Integers { what: String },
    /// The loss does not depend on a tensor.
    #[error(
        "the loss does not depend on tensor {tensor} of {what}, so it has no gradient; if that may be so, read an \
         `Option`"
    )]
    Unused { what: String, tensor: usize },
    /// Microbatches have different shapes.
    #[error(
        "the gradients of tensor {tensor} of {what} differ between microbatches in more than their number of samples, \
         and cannot be joined; give each shape a batch of its own"
    )]
    Unlike { what: String, tensor: usize },
    /// They are of another type.
    #[error("the gradients of {what} are not of the type that was asked for: {source}")]
    Type { what: String, source: BoundaryError },
}

burn_pipeline_plan::debug_as_text!(GradientError);
