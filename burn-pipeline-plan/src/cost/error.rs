//! Why a profile is refused.

use crate::plan::PlanError;

/// Why numbers do not make a profile, or not one for this plan. `field` is the name of a number, and `value` what it is, as
/// text.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "field and value mean the same in every variant, and messages say what the rest is")]
pub enum ProfileError {
    /// There is no stage.
    #[error("the profile lists no stage; give one entry a stage of the model")]
    NoStage,
    /// A number of a stage is negative, infinite or NaN.
    #[error("stage {stage}: `{field}` is {value}; it has to be zero or a positive number")]
    Stage { stage: usize, field: &'static str, value: String },
    /// `I` frees more than is held.
    #[error("stage {stage}: `freed_at_input_bytes` is above `activation_bytes`; `I` cannot free more than is held")]
    FreesTooMuch { stage: usize },
    /// A number of a link (`default`, or `FROM -> TO`) is negative, infinite or NaN.
    #[error("link {link}: `{field}` is {value}; it has to be {accepts}")]
    LinkCost { link: String, field: &'static str, value: String, accepts: &'static str },
    /// A number of the vocabulary's pieces is negative, infinite or NaN.
    #[error("the vocabulary's `{field}` is {value}; it has to be zero or a positive number")]
    Vocabulary { field: &'static str, value: String },
    /// A plan spreads the vocabulary, and the profile has no costs of its pieces.
    #[error("the plan spreads the vocabulary, but the profile does not say what its pieces cost; add `vocabulary`")]
    NoVocabulary,
    /// Some profiles to be merged have costs of a spread vocabulary, others not.
    #[error("some of the profiles to be merged have costs of a spread vocabulary; measure all of them alike")]
    DifferentVocabulary,
    /// A uniform cost is negative, infinite or NaN.
    #[error("the uniform cost `{field}` is {value}; it has to be zero or a positive number")]
    UniformCost { field: &'static str, value: String },
    /// The profile has another number of stages than the plan.
    #[error(
        "the profile has {profile} stages, but the plan has {plan}; profile the model with the plan's cut, or list one entry a stage"
    )]
    Stages { profile: usize, plan: usize },
    /// There is no profile to take the median of.
    #[error("there is no profile to merge; give one a rank")]
    NoProfile,
    /// Profiles to be merged have different numbers of stages.
    #[error("one profile has {first} stages, another one {other}; measure all of them with the same cut")]
    DifferentStages { first: usize, other: usize },
    /// A skip edge is refused.
    #[error(transparent)]
    Skip(#[from] PlanError),
    /// Profiles to be merged have different skip edges.
    #[error("profiles to be merged have different edges past the next stage; measure the same model on all ranks")]
    DifferentSkips,
    /// A link names a rank that the plan does not have.
    #[error("the profile has a link {from} -> {to}, but the plan has {ranks} ranks, numbered from 0")]
    NoSuchRank { from: usize, to: usize, ranks: usize },
    /// The text is not the JSON of a profile.
    #[error("the profile is not readable: {0}")]
    Json(String),
}

crate::debug_as_text!(ProfileError);
