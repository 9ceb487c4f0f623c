//! What the user says of a stage beside its module, with [`StageBox`](crate::stage::StageBox)'s methods.

use crate::stage::boundary::StageMetadata;
use crate::stage::state::Names;

/// What the user says of a stage beside its module.
#[derive(Clone, Debug, Default)]
pub(crate) struct StageOptions {
    /// Specs of what crosses its boundary.
    pub(crate) declared: Option<StageMetadata>,
    /// The names of its parameters in the whole model.
    pub(crate) names: Names,
    /// Are its activations recomputed? Read when its engine is chosen.
    pub(crate) recompute: bool,
    /// Are its parameters sharded over data-parallel replicas? `None` leaves that to the pipeline.
    pub(crate) sharded: Option<bool>,
}
