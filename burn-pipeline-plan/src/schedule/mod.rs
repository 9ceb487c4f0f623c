//! Schedules: pure functions from a size to a [`Plan`], one file a family.
//!
//! A user adds a family by implementing [`Schedule`] in their own crate; nothing here needs to know of it.

mod building_block;
mod chimera;
mod dropping;
mod dual_pipe;
mod dual_pipe_v;
mod eight_steps;
mod forward_only;
mod gis;
mod gis_h;
mod gpipe;
mod interleave;
mod interleaved;
mod interleaved_zero_bubble;
mod into;
mod looped_bfs;
mod one_f_one_b;
mod one_f_one_b_v;
mod registry;
mod v_half;
mod v_min;
mod virtual_stages;
mod zb_auto;
mod zb_h1;
mod zb_h2;
mod zbv;

pub use chimera::Chimera;
pub use dual_pipe::DualPipe;
pub use dual_pipe_v::DualPipeV;
pub use forward_only::ForwardOnly;
pub use gis::Gis;
pub use gis_h::GisH;
pub use gpipe::GPipe;
pub use interleaved::Interleaved1F1B;
pub use interleaved_zero_bubble::InterleavedZeroBubble;
pub use into::IntoSchedule;
pub use looped_bfs::LoopedBfs;
pub use one_f_one_b::OneFOneB;
pub use one_f_one_b_v::OneFOneBV;
pub use registry::{all, by_name};
pub use v_half::VHalf;
pub use v_min::VMin;
pub use virtual_stages::{WarmUp, schedule_table, virtual_stage_ids, warm_up};
pub use zb_auto::{MemoryLimit, ZbAuto, ZbAutoStage};
pub use zb_h1::ZbH1;
pub use zb_h2::ZbH2;
pub use zbv::ZbvZeroBubble;

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
///
/// # Example
/// A family of one's own, in any crate: one microbatch at a time, there and back.
/// ```
/// use burn_pipeline_plan::plan::{Action, Placement, PlacementKind, Plan};
/// use burn_pipeline_plan::schedule::{Chunks, Family, Schedule, ScheduleError, Size, refuse_empty};
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
///         refuse_empty(&self.family(), size)?;
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

/// The most forwards that a plan may hold over all ranks: beyond it the rows would not fit in memory.
pub const MAX_FORWARDS: usize = 1 << 27;

/// Refuses sizes that no family can build: nothing to place, nothing to run, too much to number or to hold.
///
/// # Errors
/// [`ScheduleError::Unsupported`], which says what is too small or too large.
pub fn refuse_empty(family: &Family, size: Size) -> Result<(), ScheduleError> {
    let accepts = |accepts: String| refuse(family, size, accepts);
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
    if let Chunks::Exactly(n) = family.chunks
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
    refuse_large(family, size, microbatches)
}

/// Refuses a size whose order is too long to hold when built for `microbatches` of them.
fn refuse_large(family: &Family, size: Size, microbatches: usize) -> Result<(), ScheduleError> {
    if size.ranks.saturating_mul(size.chunks).saturating_mul(microbatches) <= MAX_FORWARDS {
        return Ok(());
    }
    let built = if microbatches == size.microbatches {
        String::new()
    } else {
        format!(" (it builds for {microbatches} microbatches first)")
    };
    refuse(family, size, format!("it holds at most {MAX_FORWARDS} forwards over all stages{built}"))
}

/// Refuses a size, with a sentence that says what the family would accept.
fn refuse<T>(family: &Family, size: Size, accepts: String) -> Result<T, ScheduleError> {
    Err(ScheduleError::Unsupported { family: family.name, size, accepts })
}

/// Refuses an odd number of ranks for families whose two directions meet between two middle ranks.
fn refuse_odd(family: &Family, size: Size) -> Result<(), ScheduleError> {
    if size.ranks.is_multiple_of(2) {
        return Ok(());
    }
    let middle = "its two directions meet between two middle ranks (one middle rank would get both at once)";
    refuse(family, size, format!("{middle}, so it takes an even number of ranks"))
}

/// Microbatches of each direction: half each, the odd one to the first.
fn both_directions(microbatches: usize) -> [usize; 2] {
    [microbatches.div_ceil(2), microbatches / 2]
}
