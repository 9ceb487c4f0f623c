//! What a pipeline runs: a schedule family at a size, or one given plan.

use crate::plan::{Plan, SkipEdge};
use crate::schedule::{Schedule, Size};
use crate::train::error::BuildError;
use std::sync::Arc;

/// What is run.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// A family at a size.
    Schedule(Arc<dyn Schedule>, Size),
    /// One plan, with its number of microbatches.
    Plan(Arc<Plan>),
}

impl Source {
    /// The plan for this many microbatches, as the family builds it or as it was given.
    pub(super) fn plan(&self, microbatches: usize) -> Result<Plan, BuildError> {
        match self {
            Source::Schedule(schedule, size) => Ok(schedule.build(Size { microbatches, ..*size })?),
            Source::Plan(plan) if plan.total_microbatches() == microbatches => Ok(Plan::clone(plan)),
            Source::Plan(plan) => {
                Err(BuildError::FixedPlan { planned: plan.total_microbatches(), wanted: microbatches })
            }
        }
    }

    /// The number of microbatches that the user chose.
    pub(super) fn microbatches(&self) -> usize {
        match self {
            Source::Schedule(_, size) => size.microbatches,
            Source::Plan(plan) => plan.total_microbatches(),
        }
    }

    /// The model's skip edges: those declared to the builder, and those of a given plan.
    pub(super) fn skips(&self, declared: &[SkipEdge]) -> Vec<SkipEdge> {
        let own = if let Source::Plan(plan) = self { plan.skips() } else { &[] };
        declared.iter().chain(own.iter().filter(|edge| !declared.contains(edge))).copied().collect()
    }
}
