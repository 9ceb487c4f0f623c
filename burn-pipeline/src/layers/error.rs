//! Why a list of layers is no model.

/// Why a list of layers is no model; [`Builder::build`](crate::Builder::build) returns it.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what variants and fields are")]
pub enum LayersError {
    #[error("the model has no layer; add one with `Sequential::then`")]
    Empty,
    #[error("the model has {layers} layer(s), but the plan has {stages} stages; choose fewer ranks or chunks")]
    TooFew { layers: usize, stages: usize },
    #[error("layer `{name}` is repeated 0 times; leave it out, or repeat it at least once")]
    NoRepetition { name: String },
    #[error("two layers are named `{name}`; give each its own name, because parameters are named by it")]
    NameTwice { name: String },
    #[error(
        "layer `{layer}` takes a value under the key `{key}`, but no earlier layer gives one that is still there; let \
         one give it (`Layer::skip_out`)"
    )]
    NotGiven { layer: String, key: &'static str },
    #[error(
        "layer `{layer}` gives a value under the key `{key}`, but no later layer takes it; let one take it \
         (`Layer::skip_in`)"
    )]
    NotTaken { layer: String, key: &'static str },
    #[error(
        "layer `{layer}` has a `Skip` in its input or output, and nothing says where it goes; declare it with \
         `Layer::skip_in` or `Layer::skip_out`"
    )]
    NotDeclared { layer: String },
    #[error(
        "`Builder::skip` connects stages, and the stages of a list of layers get their edges from it; declare the \
         value with `Layer::skip_out` and `Layer::skip_in`"
    )]
    Edges,
    #[error("under the key `{key}`, layer `{from}` gives {given}, but layer `{to}` takes {taken}")]
    OtherType { key: &'static str, from: String, given: String, to: String, taken: String },
}

burn_pipeline_plan::debug_as_text!(LayersError);
