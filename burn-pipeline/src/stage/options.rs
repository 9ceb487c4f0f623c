//! The user's options for a stage, from [`StageBox`](crate::stage::StageBox)'s methods or for all stages.

use crate::payload::StageMetadata;
use crate::program::Bf16;
use crate::stage::precision::Precision;
use crate::stage::state::Names;
use burn_pipeline_plan::plan::Collectives;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Compares the recorded exchanges of a captured stage with those of the other ranks that hold it. Each rank calls it
/// once, before its first forward runs, with `None` if the stage cannot be captured. Unwinds if they differ.
pub(crate) type Members = Arc<dyn Fn(Option<Collectives>) + Send + Sync>;

/// The user's options for a stage.
#[derive(Clone, Default)]
pub(crate) struct StageOptions {
    /// Specs of what crosses its boundary.
    pub(crate) declared: Option<StageMetadata>,
    /// The names of its parameters in the whole model.
    pub(crate) names: Names,
    /// The numbers of layers that its factory passed to `StageContext::layers`.
    pub(crate) layers: BTreeSet<usize>,
    /// True if its activations are recomputed. Read when its engine is chosen.
    pub(crate) recompute: bool,
    /// Whether its parameters are sharded over data-parallel replicas; `None` leaves that to the pipeline.
    pub(crate) sharded: Option<bool>,
    /// The most programs that a captured stage keeps; [`PROGRAMS`] if `None`.
    pub(crate) programs: Option<usize>,
    /// How many forwards of a captured stage share one recording; 0 counts as 1.
    pub(crate) record_every: usize,
    /// True if captured programs are compiled.
    pub(crate) compile: bool,
    /// Set if compiled programs round the operands of matmuls.
    pub(crate) rounded: Option<Bf16>,
    /// The types of its parameters, if the module does not compute in their own.
    pub(crate) precision: Option<Precision>,
    /// True if its forwards draw random numbers from a seed.
    pub(crate) seeded: bool,
    /// True if training forwards return the outputs besides the loss.
    pub(crate) outputs: bool,
    /// The other ranks that hold it, including its data-parallel replicas, if there are any.
    pub(crate) members: Option<Members>,
    /// True if a tensor-parallel group computes each of its forwards.
    pub(crate) grouped: bool,
    /// True if its forwards exchange tensors with expert-parallel replicas.
    pub(crate) spread: bool,
}

/// The default number of programs that a captured stage keeps.
pub(crate) const PROGRAMS: usize = 64;
