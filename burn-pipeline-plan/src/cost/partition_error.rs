//! Why layers, a cut of them, or the text of a cut are refused.

use super::error::ProfileError;
use crate::plan::PlanError;

/// The most layers of a model.
pub(super) const MAX_LAYERS: usize = 4096;

/// Why layers or a cut of them are refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PartitionError {
    /// There is no layer.
    #[error("the model has no layer; list at least one")]
    NoLayer,
    /// There are more layers than can be cut.
    #[error("the model has {layers} layers; at most {} can be cut, so describe blocks of them as one", MAX_LAYERS)]
    TooManyLayers {
        /// Layers given.
        layers: usize,
    },
    /// A number of a layer is negative, infinite or NaN, or `I` frees more than is held.
    #[error("layer {layer}: `{field}` is {value}; it has to be zero or a positive number")]
    Layer {
        /// The layer, counted from 0.
        layer: usize,
        /// The name of the number.
        field: &'static str,
        /// The value, as text.
        value: String,
    },
    /// A kind is not an ASCII letter.
    #[error("`{letter}` is not a kind of layer; a kind is one ASCII letter")]
    Kind {
        /// The character.
        letter: char,
    },
    /// A kind of the pattern is not described.
    #[error("the pattern holds a layer of kind `{kind}`, which `kinds` does not describe; add it")]
    UnknownKind {
        /// The kind.
        kind: char,
    },
    /// A kind is described twice.
    #[error("kind `{kind}` is described twice; describe it once")]
    KindTwice {
        /// The kind.
        kind: char,
    },
    /// The text is not a pattern.
    #[error("column {column}: {problem}")]
    Pattern {
        /// The column of the mistake, counted from 1; one beyond the end if something is missing.
        column: usize,
        /// What is wrong there.
        problem: String,
    },
    /// The pattern's kinds are not those of the model's layers.
    #[error("layer {layer} is of kind {}, but the pattern has {} there", letter(*found), letter(*expected))]
    Mismatch {
        /// The layer, counted from 0.
        layer: usize,
        /// The pattern's kind, or none where the pattern has ended.
        expected: Option<char>,
        /// The model's kind, or none where the model has ended.
        found: Option<char>,
    },
    /// No cut has this number of stages.
    #[error("{layers} layers cannot be cut into {stages} stages of at least one layer; ask for 1 to {layers}")]
    Stages {
        /// Layers of the model.
        layers: usize,
        /// Stages asked for.
        stages: usize,
    },
    /// A boundary does not rise above the one before it, or lies outside the model.
    #[error("boundary {index} is layer {boundary}; boundaries rise, each above the one before it and from 1 to {last}")]
    Boundary {
        /// Position in the list, counted from 0.
        index: usize,
        /// The layer at which the stage would begin.
        boundary: usize,
        /// The last layer.
        last: usize,
    },
    /// A weight is negative, infinite or NaN.
    #[error("the weight of layer {layer} is {value}; it has to be zero or a positive number")]
    Weight {
        /// The layer, counted from 0.
        layer: usize,
        /// The value, as text.
        value: String,
    },
    /// A memory limit is negative, infinite or NaN, or the list of held microbatches has the wrong length.
    #[error("`{field}` is {value}; it has to be zero or a positive number{}", entries(*expected))]
    Memory {
        /// The name of the number.
        field: &'static str,
        /// The value, as text.
        value: String,
        /// The right length of the list, if the length is wrong.
        expected: Option<usize>,
    },
    /// No cut keeps every rank under the cap.
    #[error(
        "no cut into {stages} stages {} {cap} bytes a rank; raise the cap, cut the model over more ranks, or hold fewer microbatches",
        if *proved { "fits" } else { "was found that fits" }
    )]
    DoesNotFit {
        /// Stages asked for.
        stages: usize,
        /// The cap.
        cap: f64,
        /// Whether every cut was excluded; if false, the search gave up.
        proved: bool,
    },
    /// The cut has another number of layers or stages than the model or the placement.
    #[error("the cut has {cut} {what}, but there are {given}")]
    Size {
        /// `layers` or `stages`.
        what: &'static str,
        /// The number in the cut.
        cut: usize,
        /// The number in the model or the placement.
        given: usize,
    },
    /// The costs of the stages are refused.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A skip edge between layers is refused; the error calls layers stages.
    #[error(transparent)]
    Skip(#[from] PlanError),
    /// The text is not the JSON of layers.
    #[error("the layers are not readable: {0}")]
    Json(String),
}

fn letter(kind: Option<char>) -> String {
    kind.map_or("none (it has ended)".into(), |kind| format!("`{kind}`"))
}

fn entries(expected: Option<usize>) -> String {
    expected.map_or(String::new(), |n| format!(", one a stage ({n} of them) or none"))
}
