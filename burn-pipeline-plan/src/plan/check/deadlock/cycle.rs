//! The deadlock error: a cycle of ranks that wait for each other, found by following the waits from any blocked rank.

use crate::plan::check::error::CheckError;
use crate::plan::check::options::Transport;
use crate::plan::rows::Plan;
use crate::plan::waiting::Waiting;

/// Follows the waits from a waiting rank to their cycle, and returns it as an error.
#[cold]
pub(super) fn deadlock(
    plan: &Plan,
    start: usize,
    waits: impl Fn(usize) -> Option<Waiting>,
    transport: Option<Transport>,
) -> Box<CheckError> {
    let mut met = vec![usize::MAX; plan.ranks()];
    let mut path: Vec<Waiting> = Vec::new();
    let mut rank = start;
    while met[rank] == usize::MAX {
        met[rank] = path.len();
        let Some(waiting) = waits(rank) else { break };
        path.push(waiting);
        rank = waiting.on;
    }
    let cycle = path.split_off(met[rank].min(path.len().saturating_sub(1)));
    let (at, step) = cycle.first().map_or((start, 0), |waiting| (waiting.rank, waiting.step));
    Box::new(CheckError::Deadlock { transport, cycle, grid: plan.excerpt(at, step) })
}
