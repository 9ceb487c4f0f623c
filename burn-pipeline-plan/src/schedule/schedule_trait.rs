//! The trait [`Schedule`] and its types: it turns a [`Size`] into a [`Plan`] or a [`ScheduleError`].
//!
//! Guarantees: after [`ScheduleInfo::check_size`] has passed, the size can be numbered and its rows fit in memory.

use crate::plan::{PlacementKind, Plan, PlanError, Task};

/// The most forwards of a plan over all ranks; more rows would not fit in memory.
const MAX_FORWARDS: usize = 1 << 27;

/// The size of a plan to build.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    /// The number of ranks (devices), at least 1.
    pub ranks: usize,
    /// The number of stages per rank, at least 1.
    pub chunks: usize,
    /// The number of microbatches per step, over all routes, at least 1.
    pub microbatches: usize,
}

impl Size {
    /// `ranks` ranks with one stage each.
    pub fn new(ranks: usize, microbatches: usize) -> Self {
        Self { ranks, chunks: 1, microbatches }
    }

    /// The microbatches of each route of a bidirectional placement: half each, the odd one to the first.
    pub(super) fn both_directions(self) -> [usize; 2] {
        [self.microbatches.div_ceil(2), self.microbatches / 2]
    }

    /// The same size with `chunks` stages per rank.
    pub fn with_chunks(self, chunks: usize) -> Self {
        Self { chunks, ..self }
    }
}

/// Writes `2 ranks, 1 chunk per rank and 8 microbatches`.
impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let s = |count: usize| if count == 1 { "" } else { "s" };
        let Self { ranks, chunks, microbatches: m } = *self;
        write!(
            f,
            "{ranks} rank{}, {chunks} chunk{} per rank and {m} microbatch{}",
            s(ranks),
            s(chunks),
            if m == 1 { "" } else { "es" }
        )
    }
}

/// The numbers of chunks per rank that a schedule accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, derive_more::Display)]
pub enum Chunks {
    /// Exactly this many.
    Exactly(usize),
    /// Any number from 1.
    #[display("any")]
    Any,
}

/// The description of a schedule, as listed by `burn-pipeline schedules`. Each plan has its own placement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScheduleInfo {
    /// The name, in plans, errors and [`by_name`](super::by_name).
    pub name: &'static str,
    /// How it places stages on ranks.
    pub placement: PlacementKind,
    /// The chunks per rank that it accepts.
    pub chunks: Chunks,
    /// The microbatch counts that it accepts, in words.
    pub microbatches: &'static str,
    /// The paper or project that it follows.
    pub source: &'static str,
}

/// Why a schedule cannot be built.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum ScheduleError {
    /// No schedule of that name.
    #[error(
        "there is no schedule named `{name}`{}; known are {}, `Interleaved1F1B:group=G` and `GIS:group=G` for groups \
         of G microbatches; pass your own schedule as a value{}",
        suggestion(*nearest), known.join(", "), chosen_by_costs(name)
    )]
    UnknownName { name: String, nearest: Option<&'static str>, known: Vec<&'static str> },
    /// The schedule cannot be built at this size; `accepts` says what it accepts.
    #[error("{schedule} cannot be built for {size}: {accepts}")]
    Unsupported { schedule: &'static str, size: Size, accepts: String },
    /// The placement or the rows are not a valid plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

crate::debug_as_text!(ScheduleError);

/// The part of the message that names the nearest schedule.
fn suggestion(nearest: Option<&str>) -> String {
    nearest.map(|nearest| format!("; the nearest name is `{nearest}`")).unwrap_or_default()
}

/// Where to find the planner, for a name that suggests it.
fn chosen_by_costs(name: &str) -> &'static str {
    match name.trim().to_ascii_lowercase().as_str() {
        "auto" | "best" | "automatic" => {
            "; to have it chosen by costs, use `AutoPipeline` of burn-pipeline, or the command `burn-pipeline plan`"
        }
        _ => "",
    }
}

impl ScheduleInfo {
    /// A schedule that accepts any number of microbatches from 1.
    pub const fn new(name: &'static str, placement: PlacementKind, chunks: Chunks, source: &'static str) -> Self {
        Self { name, placement, chunks, microbatches: "any m >= 1", source }
    }

    /// Refuses a size that no schedule can build: without ranks, chunks or microbatches, or too large to number or
    /// hold.
    ///
    /// # Errors
    /// Returns [`ScheduleError::Unsupported`], which says what is too small or too large.
    pub fn check_size(&self, size: Size) -> Result<(), ScheduleError> {
        let accepts = |accepts: String| self.refuse(size, accepts);
        let Size { ranks, chunks, microbatches } = size;
        if ranks == 0 {
            return accepts("it needs at least one rank".into());
        }
        if chunks == 0 {
            return accepts("it needs at least one chunk per rank".into());
        }
        if microbatches == 0 {
            return accepts("it needs at least one microbatch".into());
        }
        if let Chunks::Exactly(n) = self.chunks
            && chunks != n
        {
            let chunks = if n == 1 { "chunk" } else { "chunks" };
            return accepts(format!("it places exactly {n} {chunks} per rank (`Size::with_chunks({n})`)"));
        }
        if ranks.saturating_mul(chunks) > u16::MAX.into() {
            return accepts(format!("it places at most {} stages", u16::MAX));
        }
        if microbatches > Task::MAX_MICROBATCHES {
            return accepts(format!("it numbers at most {} microbatches", Task::MAX_MICROBATCHES));
        }
        self.check_length(size, microbatches)
    }

    /// Refuses a size whose rows would be too long. `microbatches` is the number that the schedule builds for,
    /// which may be more than it keeps.
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

    /// Refuses an odd number of ranks, for schedules whose two routes meet between two middle ranks.
    pub(super) fn check_even(&self, size: Size) -> Result<(), ScheduleError> {
        if size.ranks.is_multiple_of(2) {
            return Ok(());
        }
        let middle = "its two routes meet between two middle ranks (one middle rank would get both at once)";
        self.refuse(size, format!("{middle}, so it takes an even number of ranks"))
    }

    /// The error for a size that the schedule's own rules do not allow. `accepts` ends the message, after a colon:
    /// "it takes at least as many microbatches as ranks".
    ///
    /// # Errors
    /// Always returns [`ScheduleError::Unsupported`].
    pub fn refuse<T>(&self, size: Size, accepts: impl Into<String>) -> Result<T, ScheduleError> {
        Err(ScheduleError::Unsupported { schedule: self.name, size, accepts: accepts.into() })
    }
}

/// A schedule: a pure function from a [`Size`] to a [`Plan`] of compute actions.
///
/// Implement it in any crate to add a schedule. Its plans are checked, lowered, simulated, drawn and run like those
/// of this crate. Only [`by_name`](super::by_name) does not find it; pass the value itself instead of a name.
///
/// # How to write a schedule
///
/// 1. Choose a [`Placement`](crate::plan::Placement). `looped` puts stage `s` on rank `s mod p`; `v` and `wave` go
///    back and forth; `bidirectional` has two routes; `free` takes any map.
/// 2. Refuse the sizes that you cannot build: first with [`ScheduleInfo::check_size`], then your own rules with
///    [`ScheduleInfo::refuse`].
/// 3. Write one row per rank. A row is a list of [`Action`](crate::plan::Action)s in running order, made with
///    `Action::forward(stage, microbatch)`, `backward`, `backward_input` and `backward_weight`. Leave out
///    transfers: [`Plan::with_transfers`] adds them. Ranks need no common clock, and idle cells have no effect.
/// 4. Give the rows to [`Plan::new`] with one microbatch count per route. A route is the sequence of stages that a
///    microbatch visits. A bidirectional placement has two; each counts its microbatches from 0, and the second
///    names its stages with [`StageId::in_route`](crate::plan::StageId::in_route).
///
/// # What makes rows legal
///
/// - Each rank runs, for each of its stages and each microbatch of the stage's route, one `F`, then one `B`, or one
///   `I` and later one `W`. A schedule for evaluation has only `F`.
/// - On one rank, the `F` of a stage comes after that of the previous stage, and its `B` or `I` after that of the
///   next one.
/// - Ranks do not wait for each other in a cycle.
///
/// [`Plan::check`] proves all of this, so a test of a schedule is short: build many sizes, and check each plan
/// (`plan.clone().check(..)`) and what `plan.with_transfers()` gives.
///
/// # Example
///
/// One microbatch at a time, forward and back:
///
/// ```
/// use burn_pipeline_plan::plan::{Action, CheckOptions, Placement, PlacementKind, Plan};
/// use burn_pipeline_plan::schedule::{Chunks, ScheduleInfo, Schedule, ScheduleError, Size};
///
/// #[derive(Debug)]
/// struct OneByOne;
///
/// impl Schedule for OneByOne {
///     fn info(&self) -> ScheduleInfo {
///         ScheduleInfo::new("OneByOne", PlacementKind::Loop, Chunks::Exactly(1), "this example")
///     }
///
///     fn build(&self, size: Size) -> Result<Plan, ScheduleError> {
///         self.info().check_size(size)?;
///         // With one chunk per rank, the stage has the number of its rank.
///         let row = |rank: usize| {
///             let both = move |m| [Action::forward(rank, m), Action::backward(rank, m)];
///             (0..size.microbatches).flat_map(both).collect()
///         };
///         let rows = (0..size.ranks).map(row).collect();
///         Ok(Plan::new(self.info().name, Placement::looped(size.ranks, 1)?, vec![size.microbatches], rows)?)
///     }
/// }
///
/// for ranks in 1..5 {
///     let plan = OneByOne.build(Size::new(ranks, 3))?;
///     plan.with_transfers()?.check(&CheckOptions::default())?;
/// }
/// assert!(OneByOne.build(Size::new(2, 3).with_chunks(2)).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Schedule: std::fmt::Debug + Send + Sync {
    /// The schedule's name and the sizes that it accepts.
    fn info(&self) -> ScheduleInfo;

    /// Builds the plan, without transfers (see [`Plan::with_transfers`]).
    ///
    /// # Errors
    /// Returns [`ScheduleError::Unsupported`] if the schedule cannot be built at this size; the message says what
    /// it accepts.
    fn build(&self, size: Size) -> Result<Plan, ScheduleError>;
}
