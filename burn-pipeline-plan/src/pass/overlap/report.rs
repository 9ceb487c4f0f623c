//! What a pass did, start by start.

use crate::plan::{Action, Task};
use std::fmt;

/// What stopped a start from moving earlier, or a wait from moving later.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) enum Limit {
    /// The pass places all cells at once, so there is no single limit.
    #[default]
    None,
    /// The row ended.
    End,
    /// By the estimates, nothing of it is exposed any more.
    Hidden,
    /// Starts keep their order, and waits do not move before starts: this cell is in the way.
    Order(Action),
    /// This cell computes what it needs, or uses what it receives, and may not move along.
    Data(Action),
    /// The rank would have held more than its peak and the extra allowed.
    Memory {
        /// What it would have held, in bytes (weights not counted).
        bytes: f64,
    },
    /// It has passed as many cells as the reach allows.
    Reach,
    /// The move would expose more of other operations than it hides of this one.
    Exposes {
        /// Seconds more on balance.
        seconds: f64,
    },
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::None => f.write_str("-"),
            Limit::End => f.write_str("end of the row"),
            Limit::Hidden => f.write_str("hidden by estimates"),
            Limit::Order(action) => write!(f, "order of communication: {action}"),
            Limit::Data(action) => write!(f, "data: {action}"),
            Limit::Memory { bytes } => write!(f, "memory: {bytes:.0} bytes"),
            Limit::Reach => f.write_str("reach"),
            Limit::Exposes { seconds } => write!(f, "exposes {seconds:.4} s elsewhere"),
        }
    }
}

/// How a start or a wait was moved.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Moved {
    pub(super) moves: usize,
    pub(super) grouped: usize,
    pub(super) limit: Limit,
}

/// One started transfer or collective.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct PassRow {
    /// The rank.
    pub(super) rank: usize,
    /// The start.
    pub(super) start: Task,
    /// Seconds that it takes.
    pub(super) communication: f64,
    /// Seconds of that which computation hides afterwards.
    pub(super) hidden: f64,
    /// Seconds that nothing hid before.
    pub(super) exposed_before: f64,
    /// Seconds that nothing hides afterwards.
    pub(super) exposed_after: f64,
    /// Swaps that moved it; for the passes that place all cells at once, places that its start and its wait moved.
    pub(super) moves: usize,
    /// Cells that moved along.
    pub(super) grouped: usize,
    /// What stopped it.
    pub(super) limit: Limit,
}

/// Why a pass left the plan unchanged.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Kept {
    /// Its result takes longer, in simulation.
    Slower {
        /// Seconds of the step with the result.
        makespan: f64,
    },
    /// Its result holds more than the budget allows, in simulation.
    Memory {
        /// The rank.
        rank: usize,
        /// Its peak with the result, in bytes.
        bytes: f64,
    },
    /// The check refused its result, with this error. The passes are built so that this does not happen.
    Refused(String),
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kept::Slower { makespan } => write!(f, "the step would take {makespan:.4} s"),
            Kept::Memory { rank, bytes } => write!(f, "rank {rank} would hold {bytes:.0} bytes"),
            Kept::Refused(reason) => write!(f, "the result was refused: {reason}"),
        }
    }
}

/// What a pass did, in simulated seconds and bytes.
///
/// As text it is a table with one line a transfer or collective: the estimated seconds that it takes, that computation hides
/// and that stay exposed, how far it was moved, and what stopped it. If the plan was left unchanged, the lines describe the
/// rejected attempt.
#[derive(Clone, PartialEq, Debug)]
pub struct PassReport {
    /// The pass.
    pub pass: &'static str,
    /// Computations that a cell could pass: the reach of the options, or less if a greedy pass was tried again.
    pub reach: usize,
    /// One row a start, by rank and by place.
    pub(super) rows: Vec<PassRow>,
    /// Seconds of the step before.
    pub makespan_before: f64,
    /// Seconds of the step with the plan returned.
    pub makespan_after: f64,
    /// Bytes held at most on any rank before.
    pub peak_before: f64,
    /// Bytes held at most on any rank with the plan returned.
    pub peak_after: f64,
    /// Why the plan was left unchanged, if it was: the result is slower, or holds more than the budget allows.
    pub kept: Option<String>,
    /// Moves after which memory was recounted and compared.
    pub recounts: usize,
    /// Cells, edges and neighbours visited, and actions checked and simulated, over all attempts: a measure of time
    /// that does not depend on the machine.
    pub work: usize,
}

impl PassReport {
    /// Moves of all rows.
    pub fn moves(&self) -> usize {
        self.rows.iter().map(|row| row.moves).sum()
    }

    /// Exposed seconds of all rows, before and after.
    pub fn exposed(&self) -> (f64, f64) {
        let add = |sums: (f64, f64), row: &PassRow| (sums.0 + row.exposed_before, sums.1 + row.exposed_after);
        self.rows.iter().fold((0.0, 0.0), add)
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
            writeln!(f, "the plan was left as it was: {kept}; the rows tell of the attempt")?;
        }
        let start = self.rows.iter().map(|row| row.start.to_string().len()).fold("start".len(), usize::max);
        writeln!(
            f,
            "{:>4} {:<start$} {:>10} {:>10} {:>14} {:>13} {:>5} {:>7}  stopped by",
            "rank", "start", "takes", "hidden", "exposed before", "exposed after", "moves", "grouped"
        )?;
        for row in &self.rows {
            let (rank, task) = (row.rank, row.start.to_string());
            writeln!(
                f,
                "{rank:>4} {task:<start$} {:>10.4} {:>10.4} {:>14.4} {:>13.4} {:>5} {:>7}  {}",
                row.communication, row.hidden, row.exposed_before, row.exposed_after, row.moves, row.grouped, row.limit
            )?;
        }
        Ok(())
    }
}
