//! The error type of profiles.

use crate::plan::PlanError;

/// Why numbers are not a valid profile, or not one for this plan. `field` is the name of a number, and `value` its
/// text.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "field and value mean the same in every variant, and the messages explain the others")]
pub enum ProfileError {
    /// There is no stage.
    #[error("the profile lists no stage; give one entry per stage of the model")]
    NoStage,
    /// A number of a stage is negative, infinite or NaN.
    #[error("stage {stage}: `{field}` is {value}; it must be zero or a positive number")]
    Stage { stage: usize, field: &'static str, value: String },
    /// `I` frees more than is held.
    #[error("stage {stage}: `freed_at_input_bytes` is above `activation_bytes`; `I` cannot free more than is held")]
    FreesTooMuch { stage: usize },
    /// A number of a link (`default`, or `FROM -> TO`) is negative, infinite or NaN.
    #[error("link {link}: `{field}` is {value}; it must be {accepts}")]
    LinkCost { link: String, field: &'static str, value: String, accepts: &'static str },
    /// A number of the vocabulary's pieces is negative, infinite or NaN.
    #[error("the vocabulary's `{field}` is {value}; it must be zero or a positive number")]
    Vocabulary { field: &'static str, value: String },
    /// A plan is vocabulary parallel, but the profile has no costs of its pieces.
    #[error("the plan is vocabulary parallel, but the profile has no costs of its pieces; add `vocabulary`")]
    NoVocabulary,
    /// Some of the profiles to merge have vocabulary-parallel costs, others do not.
    #[error("some of the profiles to merge have vocabulary-parallel costs, others do not; measure all of them alike")]
    DifferentVocabulary,
    /// A uniform cost is negative, infinite or NaN.
    #[error("the uniform cost `{field}` is {value}; it must be zero or a positive number")]
    UniformCost { field: &'static str, value: String },
    /// The numbers of stages of profile and plan differ.
    #[error(
        "the profile has {profile} stages, but the plan has {plan}; \
         profile the model with the plan's cut, or list one entry per stage"
    )]
    Stages { profile: usize, plan: usize },
    /// There is no such stage to train from, or it has no backward.
    #[error(
        "the model cannot train from stage {first} on: the profile has {stages} stages, numbered from 0, or it was \
         made for a model that trains from a later stage on"
    )]
    FirstTrained { first: usize, stages: usize },
    /// There is no profile to take the median of.
    #[error("there is no profile to merge; give one per rank")]
    NoProfile,
    /// The profiles to merge have different numbers of stages.
    #[error("one profile has {first} stages, another {other}; measure all of them with the same cut")]
    DifferentStages { first: usize, other: usize },
    /// A skip edge is refused.
    #[error(transparent)]
    Skip(#[from] PlanError),
    /// The profiles to merge have different skip edges.
    #[error("the profiles to merge have different skip edges; measure the same model on all ranks")]
    DifferentSkips,
    /// A link names a rank that the plan does not have.
    #[error("the profile has a link {from} -> {to}, but the plan has {ranks} ranks, numbered from 0")]
    NoSuchRank { from: usize, to: usize, ranks: usize },
    /// The text is not the JSON of a profile.
    #[error("the profile is not readable: {0}")]
    Json(String),
}

crate::debug_as_text!(ProfileError);
