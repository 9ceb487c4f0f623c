//! Why layers, a cut or its text are refused.

use super::pattern::PatternError;
use crate::cost::{LayerKind, ProfileError};
use crate::plan::SkipError;

/// Why a model cannot be cut like that.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PartitionError {
    /// There is no layer.
    #[error("the model has no layer; list at least one")]
    NoLayer,
    /// More layers than can be cut.
    #[error(
        "the model has {layers} layers; at most {} can be cut, so describe blocks of them as one",
        crate::cost::Layers::MAX
    )]
    TooManyLayers {
        /// Layers given.
        layers: usize,
    },
    /// A number of a layer is not an amount.
    #[error("layer {layer}: `{field}` is {value}; it has to be zero or a positive number")]
    Layer {
        /// The layer, counted from 0.
        layer: usize,
        /// Which number.
        field: &'static str,
        /// The value, as text.
        value: String,
    },
    /// A kind is not a letter.
    #[error("`{letter}` is not a kind of layer; a kind is one ASCII letter")]
    Kind {
        /// The character.
        letter: char,
    },
    /// A kind of the pattern has no description.
    #[error("the pattern holds a layer of kind `{kind}`, which `kinds` does not describe; add it")]
    UnknownKind {
        /// The kind.
        kind: LayerKind,
    },
    /// A kind is described twice.
    #[error("kind `{kind}` is described twice; describe it once")]
    KindTwice {
        /// The kind.
        kind: LayerKind,
    },
    /// The text is not a pattern.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// The pattern is about another model.
    #[error("layer {layer} is of kind {}, but the pattern has {} there", letter(*found), letter(*expected))]
    Mismatch {
        /// The layer, counted from 0.
        layer: usize,
        /// The pattern's kind, or none where the pattern has ended.
        expected: Option<LayerKind>,
        /// The model's kind, or none where the model has ended.
        found: Option<LayerKind>,
    },
    /// A number of stages that no cut can have.
    #[error("{layers} layers cannot be cut into {stages} stages of at least one layer; ask for 1 to {layers}")]
    Stages {
        /// Layers of the model.
        layers: usize,
        /// Stages asked for.
        stages: usize,
    },
    /// Boundaries that do not rise from layer to layer.
    #[error("boundary {index} is layer {boundary}; boundaries rise, each above the one before it and from 1 to {last}")]
    Boundary {
        /// Position in the list, counted from 0.
        index: usize,
        /// The layer at which the stage would begin.
        boundary: usize,
        /// The last layer.
        last: usize,
    },
    /// A weight is not an amount.
    #[error("the weight of layer {layer} is {value}; it has to be zero or a positive number")]
    Weight {
        /// The layer, counted from 0.
        layer: usize,
        /// The value, as text.
        value: String,
    },
    /// The cap or a number of held microbatches is not an amount.
    #[error("`{field}` is {value}; it has to be zero or a positive number{}", entries(*expected))]
    Memory {
        /// Which number.
        field: &'static str,
        /// The value, as text.
        value: String,
        /// Entries that the list must have, where it is the length that is wrong.
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
        /// Was every cut excluded, or did the search give up?
        proved: bool,
    },
    /// The cut and the layers, or the placement, differ in size.
    #[error("the cut has {cut} {what}, but there are {given}")]
    Size {
        /// What is counted.
        what: &'static str,
        /// As the cut has them.
        cut: usize,
        /// As given.
        given: usize,
    },
    /// The stages do not make a profile.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// An edge past the next layer is none; layers are numbered as stages are.
    #[error(transparent)]
    Skip(#[from] SkipError),
    /// The text is not the JSON of layers.
    #[error("the layers are not readable: {0}")]
    Json(String),
}

fn letter(kind: Option<LayerKind>) -> String {
    kind.map_or("none (it has ended)".into(), |kind| format!("`{kind}`"))
}

fn entries(expected: Option<usize>) -> String {
    expected.map_or(String::new(), |n| format!(", one a stage ({n} of them) or none"))
}
