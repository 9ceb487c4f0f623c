//! What the user says of a stage beside its module, with [`StageBox`](crate::stage::StageBox)'s methods or for all stages.

use crate::program::Bf16;
use crate::stage::boundary::StageMetadata;
use crate::stage::engine::Members;
use crate::stage::state::Names;
use std::collections::BTreeSet;

/// What the user says of a stage beside its module.
#[derive(Clone, Debug)]
pub(crate) struct StageOptions {
    /// Specs of what crosses its boundary.
    pub(crate) declared: Option<StageMetadata>,
    /// The names of its parameters in the whole model.
    pub(crate) names: Names,
    /// Of how many layers its factory asked for its share.
    pub(crate) layers: BTreeSet<usize>,
    /// Are its activations recomputed? Read when its engine is chosen.
    pub(crate) recompute: bool,
    /// Are its parameters sharded over data-parallel replicas? `None` leaves that to the pipeline.
    pub(crate) sharded: Option<bool>,
    /// The most programs that a captured stage keeps.
    pub(crate) programs: usize,
    /// Are captured programs compiled?
    pub(crate) compile: bool,
    /// Do compiled programs round operands of products?
    pub(crate) rounded: Option<Bf16>,
    /// Do its forwards draw random numbers from a seed?
    pub(crate) seeded: bool,
    /// Do training forwards give the outputs beside the loss?
    pub(crate) outputs: bool,
    /// The ranks that hold it together with this one, its data-parallel replicas too, if there are any.
    pub(crate) members: Option<Members>,
    /// Do several ranks compute each of its forwards together?
    pub(crate) grouped: bool,
    /// Do other ranks wait for this one inside of its forwards: those, or replicas over which experts are spread?
    pub(crate) awaited: bool,
}

/// The programs that a captured stage keeps where nothing else is said.
pub(crate) const PROGRAMS: usize = 64;

impl Default for StageOptions {
    fn default() -> Self {
        Self {
            declared: None,
            names: Names::default(),
            layers: BTreeSet::new(),
            recompute: false,
            sharded: None,
            programs: PROGRAMS,
            compile: false,
            rounded: None,
            seeded: false,
            outputs: false,
            members: None,
            grouped: false,
            awaited: false,
        }
    }
}
