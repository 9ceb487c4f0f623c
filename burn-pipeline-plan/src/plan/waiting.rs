//! Descriptions of blocked ranks, shared by the errors of checks and simulations.

use super::action::Action;
use super::task::Task;
use derive_more::Display;

/// The number of ranks that an error message lists in full.
const LISTED: usize = 8;

/// A rank that is blocked forever: its place, and the task that it waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Display)]
#[display("rank {rank} is stuck at step {step} ({action}) and waits for {needs} on rank {on}")]
pub struct Waiting {
    /// The rank.
    pub rank: usize,
    /// Index of the cell in the rank's row.
    pub step: usize,
    /// The cell.
    pub action: Action,
    /// The task that it waits for.
    pub needs: Task,
    /// The rank that would run that task.
    pub on: usize,
}

/// The first few of these ranks, and the number of the rest.
pub(crate) fn listed(waiting: &[Waiting]) -> String {
    let mut text = waiting.iter().take(LISTED).map(Waiting::to_string).collect::<Vec<_>>().join("; ");
    if waiting.len() > LISTED {
        text += &format!("; and {} more ranks wait", waiting.len() - LISTED);
    }
    text
}
