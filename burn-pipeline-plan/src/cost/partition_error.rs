//! The error type of layers, their cuts, and the text of cuts.

use super::error::ProfileError;
use crate::plan::PlanError;

/// The most layers of a model.
pub(super) const MAX_LAYERS: usize = 4096;

/// The most stages of a cut: as many as a plan can name.
pub(super) const MAX_STAGES: usize = u16::MAX as usize;

/// Why layers or a cut of them are refused. Layers count from 0; `field` is the name of a number, and `value` its
/// text.
#[derive(Clone, PartialEq, thiserror::Error)]
#[allow(
    missing_docs,
    reason = "layer, field and value mean the same in every variant, and the messages explain the others"
)]
pub enum PartitionError {
    /// There is no layer.
    #[error("the model has no layer; list at least one")]
    NoLayer,
    /// There are more layers than can be cut.
    #[error("the model has {layers} layers; at most {} can be cut, so describe blocks of them as one", MAX_LAYERS)]
    TooManyLayers { layers: usize },
    /// A number of a layer is negative, infinite or NaN, or `I` frees more than is held.
    #[error("layer {layer}: `{field}` is {value}; it must be zero or a positive number")]
    Layer { layer: usize, field: &'static str, value: String },
    /// A kind is not an ASCII letter.
    #[error("`{letter}` is not a kind of layer; a kind is one ASCII letter")]
    Kind { letter: char },
    /// A kind of the pattern is not described.
    #[error("the pattern holds a layer of kind `{kind}`, which `kinds` does not describe; add it")]
    UnknownKind { kind: char },
    /// A kind is described twice.
    #[error("kind `{kind}` is described twice; describe it once")]
    KindTwice { kind: char },
    /// The text is not a pattern. `column` counts from 1; it is one past the end if something is missing.
    #[error("column {column}: {problem}")]
    Pattern { column: usize, problem: String },
    /// The pattern's kinds differ from those of the model's layers. A kind is `None` where its list has ended.
    #[error("layer {layer} is of kind {}, but the pattern has {} there", letter(*found), letter(*expected))]
    Mismatch { layer: usize, expected: Option<char>, found: Option<char> },
    /// There is no such layer to train from, or it has no backward.
    #[error(
        "the model cannot train from layer {first} on: it has {layers} layers, numbered from 0, or they are costs of \
         a model that trains from a later layer on"
    )]
    FirstTrained { first: usize, layers: usize },
    /// These layers cannot be vocabulary parallel.
    #[error(
        "these layers cannot be vocabulary parallel: the first layer must be the embedding and the last one the head, \
         with at least one layer between them, no skip edge may start or end at the two, and all layers must train"
    )]
    Vocabulary,
    /// No cut has this number of stages.
    #[error(
        "{layers} layers cannot be cut into {stages} stages of at least one layer; choose 1 to {}",
        (*layers).min(MAX_STAGES)
    )]
    Stages { layers: usize, stages: usize },
    /// A boundary is not above the previous one, or is outside the model.
    #[error("boundary {index} is layer {boundary}; boundaries must increase and be from 1 to {last}")]
    Boundary { index: usize, boundary: usize, last: usize },
    /// A weight is negative, infinite or NaN.
    #[error("the weight of layer {layer} is {value}; it must be zero or a positive number")]
    Weight { layer: usize, value: String },
    /// A memory limit is negative, infinite or NaN, or the list of held microbatches has the wrong length; `expected`
    /// is the right one.
    #[error("`{field}` is {value}; it must be zero or a positive number{}", entries(*expected))]
    Memory { field: &'static str, value: String, expected: Option<usize> },
    /// No cut keeps every rank under the cap. If this is not `proved`, the search gave up.
    #[error(
        "no cut into {stages} stages {} {cap} bytes per rank; \
         raise the cap, cut the model over more ranks, or hold fewer microbatches",
        if *proved { "fits" } else { "was found that fits" }
    )]
    DoesNotFit { stages: usize, cap: f64, proved: bool },
    /// The cut is for another number of layers or stages than the model or the placement has.
    #[error("the cut has {cut} {what}, but there are {given}")]
    Size { what: &'static str, cut: usize, given: usize },
    /// The costs of the stages are refused.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A skip edge between layers is refused. The message says stages for layers.
    #[error(transparent)]
    Skip(#[from] PlanError),
    /// The text is not the JSON of layers.
    #[error("the layers are not readable: {0}")]
    Json(String),
}

crate::debug_as_text!(PartitionError);

fn letter(kind: Option<char>) -> String {
    kind.map_or("none (it has ended)".into(), |kind| format!("`{kind}`"))
}

fn entries(expected: Option<usize>) -> String {
    expected.map_or(String::new(), |n| format!(", one per stage ({n} of them) or none"))
}
