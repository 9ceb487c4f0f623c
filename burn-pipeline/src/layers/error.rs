//! Why a list of layers is no model.

/// Why a list of layers is no model; [`Builder::build`](crate::Builder::build) returns it.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum LayersError {
    /// The list is empty.
    #[error("the model has no layer; add one with `Sequential::then`")]
    Empty,
    /// The plan has more stages than the list has layers.
    #[error("the model has {layers} layer(s), but the plan has {stages} stages; choose fewer ranks or chunks")]
    TooFew { layers: usize, stages: usize },
    /// The cut is that of another number of layers.
    #[error("`Builder::cut` divides {cut} layers, but the model has {layers}; give it a cut of {layers} layers")]
    OtherCut { cut: usize, layers: usize },
    /// A layer is repeated 0 times.
    #[error("layer `{name}` is repeated 0 times; leave it out, or repeat it at least once")]
    NoRepetition { name: String },
    /// Two layers have one name.
    #[error("two layers are named `{name}`; give each its own name, because parameters are named by it")]
    NameTwice { name: String },
    /// A layer takes a value that no earlier layer gives.
    #[error(
        "layer `{layer}` takes a value under the key `{key}`, but no earlier layer gives one that is still there; let \
         one give it (`Layer::skip_out`)"
    )]
    NotGiven { layer: String, key: &'static str },
    /// A layer gives a value that no later layer takes.
    #[error(
        "layer `{layer}` gives a value under the key `{key}`, but no later layer takes it; let one take it \
         (`Layer::skip_in`)"
    )]
    NotTaken { layer: String, key: &'static str },
    /// A layer gives or takes a `Skip` as part of its output or input.
    #[error(
        "layer `{layer}` has a `Skip` in its input or output, and nothing says where it goes; declare it with \
         `Layer::skip_in` or `Layer::skip_out`"
    )]
    NotDeclared { layer: String },
    /// Skip edges between stages were declared, too.
    #[error(
        "`Builder::skip` connects stages, and the stages of a list of layers get their edges from it; declare the \
         value with `Layer::skip_out` and `Layer::skip_in`"
    )]
    Edges,
    /// The value has another type than the one that is taken.
    #[error("under the key `{key}`, layer `{from}` gives {given}, but layer `{to}` takes {taken}")]
    OtherType { key: &'static str, from: String, given: String, to: String, taken: String },
}

burn_pipeline_plan::debug_as_text!(LayersError);
