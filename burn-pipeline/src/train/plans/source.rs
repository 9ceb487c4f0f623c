//! What a pipeline runs: a schedule at a size, or one given plan.

use crate::train::error::BuildError;
use burn_pipeline_plan::plan::{Action, MicrobatchTask, Plan, SkipEdge};
use burn_pipeline_plan::schedule::{Schedule, Size};
use std::sync::Arc;

#[derive(Clone, Debug)]
pub(crate) enum Source {
    Schedule(Arc<dyn Schedule>, Size),
    /// One plan, with its own number of microbatches.
    Plan(Arc<Plan>),
    /// A plan chosen for batches of this size; for smaller batches, the missing microbatches are left out.
    Chosen(Arc<Plan>),
}

impl Source {
    /// The plan for this many microbatches, as the schedule builds it or as it was given.
    pub(super) fn plan(&self, microbatches: usize) -> Result<Plan, BuildError> {
        match self {
            Source::Schedule(schedule, size) => Ok(schedule.build(Size { microbatches, ..*size })?),
            Source::Plan(plan) | Source::Chosen(plan) if plan.total_microbatches() == microbatches => {
                Ok(Plan::clone(plan))
            }
            Source::Chosen(plan) if microbatches < plan.total_microbatches() => fewer(plan, microbatches),
            Source::Plan(plan) | Source::Chosen(plan) => {
                let (planned, replicas) = (plan.total_microbatches(), 1);
                Err(BuildError::FixedPlan { planned, replicas, wanted: microbatches })
            }
        }
    }

    /// The number of the model's stages.
    pub(crate) fn stages(&self) -> Result<usize, BuildError> {
        Ok(match self {
            Source::Schedule(schedule, size) => schedule.build(*size)?.placement().stages(),
            Source::Plan(plan) | Source::Chosen(plan) => plan.placement().stages(),
        })
    }

    /// The number of microbatches chosen by the user.
    pub(super) fn microbatches(&self) -> usize {
        match self {
            Source::Schedule(_, size) => size.microbatches,
            Source::Plan(plan) | Source::Chosen(plan) => plan.total_microbatches(),
        }
    }

    /// The model's skip edges: those declared to the builder, and those of a given plan.
    pub(super) fn skips(&self, declared: &[SkipEdge]) -> Vec<SkipEdge> {
        let own = if let Source::Plan(plan) | Source::Chosen(plan) = self { plan.skips() } else { &[] };
        declared.iter().chain(own.iter().filter(|edge| !declared.contains(edge))).copied().collect()
    }
}

/// The computations of a plan for its first microbatches, in its order; their dependencies still come before them.
fn fewer(plan: &Plan, microbatches: usize) -> Result<Plan, BuildError> {
    let routes = plan.placement().routes();
    let share = |route: usize| (microbatches + routes - 1 - route) / routes;
    let kept = |task: MicrobatchTask| task.op().is_compute() && task.microbatch() < share(task.stage().route());
    let shorter = |action: &Action| match *action {
        Action::Overlap(a, b) if kept(a) && kept(b) => Some(*action),
        _ => action.tasks().find(|task| task.of_microbatch().is_some_and(kept)).map(Action::Single),
    };
    let rows = plan.rows().iter().map(|row| row.iter().filter_map(shorter).collect()).collect();
    let counts = (0..routes).map(share).collect();
    let kept = Plan::new(plan.name(), plan.placement().clone(), counts, rows)?.with_skips(plan.skips().to_vec())?;
    Ok(kept.train_from(plan.first_trained())?)
}
