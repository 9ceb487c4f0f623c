//! Skip edges: values that a stage passes to a later stage, past the stages in between (the long connections of
//! U-Nets, an encoder's output that every decoder stage reads).
//!
//! Guarantees: the edges of a plan are sorted and distinct, each leads forward past at least one stage, and both
//! its ends are stages of the plan.
//!
//! An edge adds transfers but no order: its later stage already runs after all stages in between, and so after its
//! earlier one; in backward, the reverse. Each value crosses ranks once, and its gradient comes back once.

use super::error::PlanError;
use super::skip_edge::SkipEdge;
use super::stage_id::StageId;
use super::task::Task;

/// Sorts the edges of a model of `stages` stages (or layers), or returns an error for an invalid one. No edge may
/// span more than `longest`.
pub(crate) fn checked(mut edges: Vec<SkipEdge>, stages: usize, longest: usize) -> Result<Vec<SkipEdge>, PlanError> {
    let refuse = |edge, reason: &str| Err(PlanError::Skip { edge, reason: reason.to_owned() });
    for &edge in &edges {
        match edge.to.checked_sub(edge.from) {
            None | Some(0) => {
                return refuse(edge, "does not lead to a later stage; values go forward through the model");
            }
            _ if edge.to >= stages => {
                return refuse(edge, &format!("needs a stage {}, but the plan has {stages}", edge.to));
            }
            Some(1) => return refuse(edge, "leads to the next stage; pass the value in the stage's output instead"),
            Some(span) if span > longest => {
                return refuse(edge, &format!("spans more than {longest} stages; pass the value in two edges"));
            }
            Some(_) => {}
        }
    }
    edges.sort_unstable();
    match edges.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => refuse(pair[0], "is listed twice; pass several values as one tuple"),
        None => Ok(edges),
    }
}

/// The edge of a transfer along a skip edge; `None` for all other tasks.
pub(crate) fn edge_of(task: Task) -> Option<SkipEdge> {
    let (own, peer) = (task.stage().index(), task.skip_peer()?.index());
    Some(SkipEdge { from: own.min(peer), to: own.max(peer) })
}

/// Both ends of an edge on one route.
pub(crate) fn ends(edge: SkipEdge, route: usize) -> (StageId, StageId) {
    (StageId::in_route(route, edge.from), StageId::in_route(route, edge.to))
}
