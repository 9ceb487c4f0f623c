//! Refuses plans that the simulation's tables cannot index: every action must name stages, microbatches and edges of
//! the plan.

use super::error::SimulateError;
use crate::plan::skips::edge_of;
use crate::plan::vocabulary::VocabularyLayers;
use crate::plan::{Plan, Task};

/// Tables of up to this many entries are accepted for every plan.
const SMALL_TABLE: usize = 1 << 20;

/// Refuses a plan with an action that names something that the plan does not have, or with far more microbatches than
/// actions.
pub(super) fn validate(plan: &Plan) -> Result<(), SimulateError> {
    let (slots, most) = (plan.placement().slots(), plan.microbatches().iter().copied().max().unwrap_or(0));
    let actions: usize = plan.rows().iter().map(Vec::len).sum();
    // The tables have an entry for each stage and microbatch. A complete plan has more actions than that, so a plan
    // with far fewer is refused before a huge table is allocated.
    if slots.saturating_mul(most) > actions.saturating_mul(2).max(SMALL_TABLE) {
        return Err(SimulateError::Sparse { microbatches: most, stages: slots, actions });
    }
    let vocabulary = VocabularyLayers::of(plan);
    for (rank, row) in plan.rows().iter().enumerate() {
        for (step, &action) in row.iter().enumerate() {
            if let Some(reason) = action.tasks().find_map(|task| fault(plan, vocabulary, rank, task)) {
                return Err(SimulateError::Foreign { rank, step, action, reason });
            }
        }
    }
    Ok(())
}

/// What is wrong with a task; `None` if nothing is.
fn fault(plan: &Plan, vocabulary: VocabularyLayers, rank: usize, task: Task) -> Option<&'static str> {
    let (placement, stage) = (plan.placement(), task.stage());
    if !placement.contains(stage) {
        return Some("the plan has no such stage");
    }
    if task.op().is_vocabulary() {
        return match vocabulary.stage_for(task.op()) {
            _ if placement.routes() > 1 => Some("a parallel vocabulary needs a placement with one route"),
            named if named != Some(stage) => {
                Some("the head comes after the last stage, the embedding before the first")
            }
            _ if task.microbatch().is_some_and(|m| m >= plan.microbatches()[0]) => {
                Some("the stage's route has fewer microbatches")
            }
            _ => None,
        };
    }
    if placement.rank_of(stage) != rank {
        return Some("the stage is on another rank");
    }
    if task.microbatch().is_some_and(|m| m >= plan.microbatches()[stage.route()]) {
        return Some("the stage's route has fewer microbatches");
    }
    if task.is_skip() {
        let known = edge_of(task).is_some_and(|edge| plan.skips().contains(&edge));
        return (!known).then_some("the plan has no edge between these stages");
    }
    let moves = task.op().is_transfer() || task.op().is_transfer_wait();
    (moves && placement.peer(task).is_none()).then_some("there is no stage at the other end of this transfer")
}
