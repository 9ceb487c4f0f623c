//! The result of a pass, start by start.

use crate::plan::{Action, Task};
use derive_more::Display;
use serde::Serialize;
use std::fmt;

/// What stopped a start from moving earlier, or a wait from moving later.
#[derive(Clone, Copy, PartialEq, Debug, Default, Display, Serialize)]
pub enum Limit {
    /// The pass places all cells at once, so there is no single limit.
    #[default]
    #[display("-")]
    None,
    /// The row ended.
    #[display("end of the row")]
    End,
    /// By the estimates, nothing of it is exposed any more.
    #[display("hidden by estimates")]
    Hidden,
    /// Starts keep their order, and waits do not move before starts: this cell blocks the move.
    #[display("order of communication: {_0}")]
    Order(Action),
    /// This cell computes its value, or uses the received value, and may not move along.
    #[display("data: {_0}")]
    Data(Action),
    /// The rank would have held more than its peak and the allowed extra.
    #[display("memory: {bytes:.0} bytes")]
    Memory {
        /// The bytes that it would have held (without weights).
        bytes: f64,
    },
    /// It has passed as many cells as the reach allows.
    #[display("reach")]
    Reach,
    /// The move would expose more of other operations than it hides of this one.
    #[display("exposes {seconds:.4} s elsewhere")]
    Exposes {
        /// The net increase in seconds.
        seconds: f64,
    },
}

/// How a start or a wait was moved.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Movement {
    pub(super) moves: usize,
    pub(super) along: Vec<Action>,
    pub(super) limit: Limit,
}

/// The result of a pass for one start of a transfer or a collective that has its own wait. Seconds are the pass's
/// estimates, from the rank's row alone.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct StartReport {
    /// The rank.
    pub rank: usize,
    /// The start.
    pub start: Task,
    /// The seconds of the operation.
    pub communication: f64,
    /// Of these, the seconds that computation hides afterwards.
    pub hidden: f64,
    /// The first computations that hide it afterwards, each with its seconds: until they cover it, at most
    /// [`StartReport::NAMED`].
    pub hidden_by: Vec<(Action, f64)>,
    /// The seconds that nothing hid before.
    pub exposed_before: f64,
    /// The seconds that nothing hides afterwards.
    pub exposed_after: f64,
    /// The swaps that moved it; for passes that place all cells at once, the places that its start and its wait
    /// moved.
    pub moves: usize,
    /// The cells that moved along, in the order in which they joined; empty for passes that place all cells at
    /// once.
    pub along: Vec<Action>,
    /// What stopped it.
    pub limit: Limit,
}

impl StartReport {
    /// The most computations that a report names for each start, so that it grows linearly with the plan.
    pub const NAMED: usize = 16;

    fn along(&self) -> String {
        listed(self.along.iter().map(Action::to_string))
    }

    fn hidden_by(&self) -> String {
        listed(self.hidden_by.iter().map(|(action, seconds)| format!("{action} {seconds:.4}")))
    }
}

/// The words separated by commas, or a dash if there are none.
fn listed(words: impl Iterator<Item = String>) -> String {
    let words = words.collect::<Vec<_>>().join(", ");
    if words.is_empty() { "-".into() } else { words }
}

/// The result of a pass, in simulated seconds and bytes.
///
/// As text it is a table with one line per transfer or collective: the estimated seconds of the operation, the
/// hidden and the exposed seconds, how far it moved, what stopped it, what moved along and what hides it. As JSON
/// it has its fields. If the plan was left unchanged, the lines describe the rejected attempt. A [`tracing`] event
/// is emitted at debug level for each pass, and at trace level for each start.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PassReport {
    /// The pass.
    pub pass: &'static str,
    /// The number of computations that a cell could pass: the reach of the options, or less if a greedy pass was
    /// retried.
    pub reach: usize,
    /// The starts, by rank and by place.
    pub starts: Vec<StartReport>,
    /// The seconds of the step before.
    pub makespan_before: f64,
    /// The seconds of the step with the returned plan.
    pub makespan_after: f64,
    /// The highest peak of any rank before, in bytes.
    pub peak_before: f64,
    /// The highest peak of any rank with the returned plan, in bytes.
    pub peak_after: f64,
    /// Why the plan was left unchanged, if it was: the result is slower, or holds more than the budget allows.
    pub kept: Option<String>,
    /// The cells, edges and neighbours visited, plus the actions checked and simulated, over all attempts: a
    /// machine-independent measure of time.
    pub work: usize,
}

impl PassReport {
    /// The moves of all starts.
    pub fn moves(&self) -> usize {
        self.starts.iter().map(|start| start.moves).sum()
    }

    /// The exposed seconds of all starts, before and after.
    pub fn exposed(&self) -> (f64, f64) {
        let add = |sums: (f64, f64), row: &StartReport| (sums.0 + row.exposed_before, sums.1 + row.exposed_after);
        self.starts.iter().fold((0.0, 0.0), add)
    }

    pub(super) fn emit(&self) {
        let (before, after) = self.exposed();
        let Self { pass, makespan_before, makespan_after, kept, .. } = self;
        tracing::debug!(
            pass,
            moves = self.moves(),
            exposed_before = before,
            exposed_after = after,
            makespan_before,
            makespan_after,
            peak_before = self.peak_before,
            peak_after = self.peak_after,
            kept,
            "an overlap pass ran"
        );
        if tracing::enabled!(tracing::Level::TRACE) {
            for row in &self.starts {
                let StartReport { rank, start, hidden, exposed_before, exposed_after, moves, limit, .. } = row;
                tracing::trace!(
                    pass, rank, %start, hidden, exposed_before, exposed_after, moves, stopped_by = %limit,
                    along = row.along(), hidden_by = row.hidden_by(), "a start after an overlap pass"
                );
            }
        }
    }
}

impl fmt::Display for PassReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (before, after) = self.exposed();
        let moves = self.moves();
        writeln!(f, "{}: {before:.4} s exposed before, {after:.4} s after, {moves} moves", self.pass)?;
        let (makespan, peak) = (self.makespan_before, self.peak_before);
        writeln!(
            f,
            "step {makespan:.4} s -> {:.4} s, peak {peak:.0} -> {:.0} bytes",
            self.makespan_after, self.peak_after
        )?;
        if let Some(kept) = &self.kept {
            writeln!(f, "the plan was left unchanged: {kept}; the rows describe the rejected attempt")?;
        }
        let start = self.starts.iter().map(|row| row.start.to_string().len()).fold("start".len(), usize::max);
        writeln!(
            f,
            "{:>4} {:<start$} {:>10} {:>10} {:>14} {:>13} {:>5}  stopped by; moved along; hidden by",
            "rank", "start", "takes", "hidden", "exposed before", "exposed after", "moves"
        )?;
        for row in &self.starts {
            let (rank, task) = (row.rank, row.start.to_string());
            writeln!(
                f,
                "{rank:>4} {task:<start$} {:>10.4} {:>10.4} {:>14.4} {:>13.4} {:>5}  {}; {}; {}",
                row.communication,
                row.hidden,
                row.exposed_before,
                row.exposed_after,
                row.moves,
                row.limit,
                row.along(),
                row.hidden_by()
            )?;
        }
        Ok(())
    }
}
