//! What a schedule family is asked for and what it answers: a [`Size`] in, a [`Plan`] or a [`ScheduleError`] out.
//!
//! Guarantees: after [`Family::check_size`] has passed, the size can be numbered and its rows fit in memory.

use crate::plan::{PlacementError, PlacementKind, Plan, PlanError, Task};

/// The most forwards that a plan may hold over all ranks: beyond it the rows would not fit in memory.
pub const MAX_FORWARDS: usize = 1 << 27;

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

impl Family {
    /// Refuses a size that no family can build: nothing to place, nothing to run, too much to number or to hold.
    ///
    /// # Errors
    /// [`ScheduleError::Unsupported`], which says what is too small or too large.
    pub fn check_size(&self, size: Size) -> Result<(), ScheduleError> {
        let accepts = |accepts: String| self.refuse(size, accepts);
        let Size { ranks, chunks, microbatches } = size;
        if ranks == 0 {
            return accepts("it needs at least one rank".into());
        }
        if chunks == 0 {
            return accepts("it needs at least one chunk a rank".into());
        }
        if microbatches == 0 {
            return accepts("it needs at least one microbatch".into());
        }
        if let Chunks::Exactly(n) = self.chunks
            && chunks != n
        {
            return accepts(format!("it places exactly {n} chunk{} a rank", if n == 1 { "" } else { "s" }));
        }
        if ranks.saturating_mul(chunks) > u16::MAX.into() {
            return accepts(format!("it places at most {} stages", u16::MAX));
        }
        if microbatches > Task::MAX_MICROBATCHES {
            return accepts(format!("it numbers at most {} microbatches", Task::MAX_MICROBATCHES));
        }
        self.check_length(size, microbatches)
    }

    /// Refuses a size whose rows would be too long to hold. `microbatches` is how many the family builds for, which may
    /// be more than it keeps.
    pub(super) fn check_length(&self, size: Size, microbatches: usize) -> Result<(), ScheduleError> {
        if size.ranks.saturating_mul(size.chunks).saturating_mul(microbatches) <= MAX_FORWARDS {
            return Ok(());
        }
        let built = if microbatches == size.microbatches {
            String::new()
        } else {
            format!(" (it builds for {microbatches} microbatches first)")
        };
        self.refuse(size, format!("it holds at most {MAX_FORWARDS} forwards over all stages{built}"))
    }

    /// Refuses an odd number of ranks, for families whose two directions meet between two middle ranks.
    pub(super) fn check_even(&self, size: Size) -> Result<(), ScheduleError> {
        if size.ranks.is_multiple_of(2) {
            return Ok(());
        }
        let middle = "its two directions meet between two middle ranks (one middle rank would get both at once)";
        self.refuse(size, format!("{middle}, so it takes an even number of ranks"))
    }

    /// The error for a size that the family's own rules do not allow. `accepts` is a sentence that says what would be
    /// accepted.
    ///
    /// # Errors
    /// Always, with [`ScheduleError::Unsupported`].
    pub fn refuse<T>(&self, size: Size, accepts: impl Into<String>) -> Result<T, ScheduleError> {
        Err(ScheduleError::Unsupported { family: self.name, size, accepts: accepts.into() })
    }
}

/// A family of schedules: a pure function from a [`Size`] to a [`Plan`] of compute actions.
///
/// # Example
/// A family of one's own, in any crate: one microbatch at a time, there and back.
/// ```
/// use burn_pipeline_plan::plan::{Action, Placement, PlacementKind, Plan};
/// use burn_pipeline_plan::schedule::{Chunks, Family, Schedule, ScheduleError, Size};
///
/// #[derive(Debug)]
/// struct OneByOne;
///
/// impl Schedule for OneByOne {
///     fn family(&self) -> Family {
///         Family {
///             name: "OneByOne",
///             placement: PlacementKind::Loop,
///             chunks: Chunks::Exactly(1),
///             microbatches: "any m >= 1",
///             source: "this example",
///         }
///     }
///
///     fn build(&self, size: Size) -> Result<Plan, ScheduleError> {
///         self.family().check_size(size)?;
///         let row = |rank: usize| (0..size.microbatches).flat_map(move |m| [Action::forward(rank, m), Action::backward(rank, m)]);
///         let rows = (0..size.ranks).map(|rank| row(rank).collect()).collect();
///         Ok(Plan::new("OneByOne", Placement::looped(size.ranks, 1)?, vec![size.microbatches], rows)?)
///     }
/// }
///
/// assert_eq!(OneByOne.build(Size::new(2, 2))?.row(1).len(), 4);
/// # Ok::<(), ScheduleError>(())
/// ```
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
