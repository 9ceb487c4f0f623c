//! The error type of profiles.

use crate::plan::PlanError;

/// Why numbers are not a valid profile, or not one for this plan. `field` is the name of a number, and `value` its
/// text.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the text above and the messages explain variants and fields")]
pub enum ProfileError {
    #[error("the profile lists no stage; give one entry per stage of the model")]
    NoStage,
    #[error("stage {stage}: `{field}` is {value}; it must be zero or a positive number")]
    Stage { stage: usize, field: &'static str, value: String },
    #[error("stage {stage}: `freed_at_input_bytes` is above `activation_bytes`; `I` cannot free more than is held")]
    FreesTooMuch { stage: usize },
    /// A number of a link (`default`, or `FROM -> TO`) is negative, infinite or NaN.
    #[error("link {link}: `{field}` is {value}; it must be {accepts}")]
    LinkCost { link: String, field: &'static str, value: String, accepts: &'static str },
    #[error("the vocabulary's `{field}` is {value}; it must be zero or a positive number")]
    Vocabulary { field: &'static str, value: String },
    #[error("the plan is vocabulary parallel, but the profile has no costs of its pieces; add `vocabulary`")]
    NoVocabulary,
    #[error("some of the profiles to merge have vocabulary-parallel costs, others do not; measure all of them alike")]
    DifferentVocabulary,
    #[error("the uniform cost `{field}` is {value}; it must be zero or a positive number")]
    UniformCost { field: &'static str, value: String },
    #[error(
        "the profile has {profile} stages, but the plan has {plan}; \
         profile the model with the plan's cut, or list one entry per stage"
    )]
    Stages { profile: usize, plan: usize },
    #[error("the model cannot train from stage {first} on: the profile has {stages} stages, numbered from 0")]
    FirstTrained { first: usize, stages: usize },
    #[error("there is no profile to merge; give one per rank")]
    NoProfile,
    #[error("one profile has {first} stages, another {other}; measure all of them with the same cut")]
    DifferentStages { first: usize, other: usize },
    /// A skip edge is refused.
    #[error(transparent)]
    Skip(#[from] PlanError),
    #[error("the profiles to merge have different skip edges; measure the same model on all ranks")]
    DifferentSkips,
    #[error("the profile has a link {from} -> {to}, but the plan has {ranks} ranks, numbered from 0")]
    NoSuchRank { from: usize, to: usize, ranks: usize },
    #[error("the profile is not readable: {0}")]
    Json(String),
}

crate::debug_as_text!(ProfileError);
