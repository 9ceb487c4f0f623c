//! GIS: grouped interleaving with a split backward; memory depends on the group size.
//!
//! ```text
//! p=2 v=2 m=2
//! rank 0: 0F0 0F1 2F0 2F1     2I0 2W0     2I1 2W1 0I0 0W0 0I1 0W1
//! rank 1:     1F0 1F1 3F0 3I0 3W0 3F1 3I1 3W1 1I0 1W0 1I1 1W1
//! ```
//!
//! 1. Groups of `g` microbatches run chunk by chunk, as in interleaved 1F1B.
//! 2. Warm-up: `(v-1) g + (p-1-r)` forwards.
//! 3. Steady: forward, `I`, `W` in turn; then the remaining `I` and `W`. With `delayed_weight`, the `W` comes `r`
//!    backwards later.
//!
//! Bubble `(p-1)(F+B)/v` with groups of p, where a rank holds p microbatches at its peak. Smaller groups hold
//! `(g(v-1)+p)/v` and stall `(p-g)(v-1)` chunk slots more (unit costs, g dividing m). With delayed `W` and groups
//! of p it equals [interleaved zero bubble](super::interleaved_zero_bubble).
//! Source: Wan et al., PipeOffload (2025).

use super::interleave::{self, Backward, Groups};
use super::schedule_trait::{Chunks, Schedule, ScheduleError, ScheduleInfo, Size};
use crate::plan::{PlacementKind, Plan};

/// The grouped interleaved schedule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gis {
    /// The number of microbatches of a group, which go through a chunk before the next chunk starts. `None` means
    /// about p: groups as even as possible, none shorter than p. A number must be at least `(p-1)/2`, rounded up.
    pub group: Option<usize>,
    /// If true, rank r delays each `W` by r backwards.
    pub delayed_weight: bool,
}

impl Schedule for Gis {
    fn info(&self) -> ScheduleInfo {
        ScheduleInfo::new("GIS", PlacementKind::Loop, Chunks::Any, "Wan et al. 2025, PipeOffload, arXiv:2503.01328")
    }

    fn build(&self, size: Size) -> Result<Plan, ScheduleError> {
        let schedule = self.info();
        schedule.check_size(size)?;
        let shortest = (size.ranks - 1).div_ceil(2);
        let groups = Groups::from_option(&schedule, size, self.group, shortest, shortest)?;
        build_grouped(&schedule, size, groups, self.delayed_weight)
    }
}

/// The rows of GIS, GIS-H and interleaved zero bubble.
pub(super) fn build_grouped(
    schedule: &ScheduleInfo,
    size: Size,
    groups: Groups,
    delayed_weight: bool,
) -> Result<Plan, ScheduleError> {
    let (table, ahead) = (groups.table(size.chunks), (size.chunks - 1) * groups.largest());
    schedule.plan(size, |rank| {
        let lag = if delayed_weight { rank } else { 0 };
        interleave::row(&table, size, rank, ahead + size.ranks - 1 - rank, Backward::Split { lag })
    })
}
