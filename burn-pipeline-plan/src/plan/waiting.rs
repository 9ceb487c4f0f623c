//! What ranks that can never go on wait for: the part that errors of checks, passes and simulations share.

use super::action::Action;
use super::task::Task;
use std::fmt;

/// Ranks that an error's message lists before it counts the rest.
const LISTED: usize = 8;

/// A rank that can never go on: its place, and the task that it waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// The rank.
    pub rank: usize,
    /// Index of the cell in the rank's row.
    pub step: usize,
    /// The cell.
    pub action: Action,
    /// The task that it waits for.
    pub needs: Task,
    /// The rank that would have to run that task.
    pub on: usize,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, step, action, needs, on } = self;
        write!(f, "rank {rank} stands at step {step} ({action}) and waits for {needs} on rank {on}")
    }
}

/// The first few of these ranks, and how many more there are.
pub(crate) fn listed(waiting: &[Waiting]) -> String {
    let mut text = waiting.iter().take(LISTED).map(Waiting::to_string).collect::<Vec<_>>().join("; ");
    if waiting.len() > LISTED {
        text += &format!("; and {} more ranks wait", waiting.len() - LISTED);
    }
    text
}
