//! Schedules: pure functions from a size to a [`Plan`], one file a family.
//!
//! A user adds a family by implementing [`Schedule`] in their own crate; nothing here needs to know of it.

mod forward_only;
mod gpipe;
mod one_f_one_b;

pub use forward_only::ForwardOnly;
pub use gpipe::GPipe;
pub use one_f_one_b::OneFOneB;

use crate::plan::{PlacementError, PlacementKind, Plan, PlanError, Task};

/// The size of a plan to build.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    /// Ranks (devices), at least 1.
    pub ranks: usize,
    /// Stages a rank, at least 1.
    pub chunks: usize,
    /// Microbatches a step, over all routes, at least 1.
    pub microbatches: usize,
}

impl Size {
    /// `ranks` ranks with one stage each.
    pub fn new(ranks: usize, microbatches: usize) -> Self {
        Self { ranks, chunks: 1, microbatches }
    }

    /// The same with `chunks` stages a rank.
    pub fn with_chunks(self, chunks: usize) -> Self {
        Self { chunks, ..self }
    }
}

/// How many chunks a rank a family can place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chunks {
    /// Exactly this many.
    Exactly(usize),
    /// Any number from 1.
    Any,
}

impl std::fmt::Display for Chunks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Chunks::Exactly(n) => n.fmt(f),
            Chunks::Any => f.write_str("any"),
        }
    }
}

/// What a family says of itself; a line of `burn-pipeline schedules`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Family {
    /// Name, as [`by_name`] takes it.
    pub name: &'static str,
    /// Where it places stages.
    pub placement: PlacementKind,
    /// Chunks a rank it accepts.
    pub chunks: Chunks,
    /// Which microbatch counts it accepts, in words.
    pub microbatches: &'static str,
    /// The paper or project that it follows.
    pub source: &'static str,
}

/// Why a schedule could not be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// No family of that name.
    #[error("there is no schedule named `{name}`; known are {}", known.join(", "))]
    UnknownName {
        /// The name asked for.
        name: String,
        /// All names.
        known: Vec<&'static str>,
    },
    /// The family cannot be built at this size.
    #[error("{family} cannot be built for {} ranks, {} chunks a rank and {} microbatches: {accepts}", size.ranks, size.chunks, size.microbatches)]
    Unsupported {
        /// The family.
        family: &'static str,
        /// The size asked for.
        size: Size,
        /// What it would accept.
        accepts: String,
    },
    /// The placement is not one.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// The rows do not make a plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// A family of schedules: a pure function from a [`Size`] to a [`Plan`] of compute actions.
pub trait Schedule: std::fmt::Debug + Send + Sync {
    /// What the family is and accepts.
    fn family(&self) -> Family;

    /// Builds the plan, without transfers (see [`crate::pass::insert_transfers`]).
    ///
    /// # Errors
    /// [`ScheduleError::Unsupported`] where the family's mathematics does not allow the size; the message says
    /// what it would accept.
    fn build(&self, size: Size) -> Result<Plan, ScheduleError>;
}

/// Refuses sizes that no family can build: nothing to place, nothing to run, too much to number.
pub fn refuse_empty(family: &Family, size: Size) -> Result<(), ScheduleError> {
    let accepts = |accepts: String| Err(ScheduleError::Unsupported { family: family.name, size, accepts });
    match (size, family.chunks) {
        (Size { ranks: 0, .. }, _) => accepts("it needs at least one rank".into()),
        (Size { chunks: 0, .. }, _) => accepts("it needs at least one chunk a rank".into()),
        (Size { microbatches: 0, .. }, _) => accepts("it needs at least one microbatch".into()),
        (Size { chunks, .. }, Chunks::Exactly(n)) if chunks != n => {
            accepts(format!("it places exactly {n} chunk{} a rank", if n == 1 { "" } else { "s" }))
        }
        (Size { microbatches, .. }, _) if microbatches > Task::MAX_MICROBATCHES => {
            accepts(format!("it numbers at most {} microbatches", Task::MAX_MICROBATCHES))
        }
        _ => Ok(()),
    }
}
