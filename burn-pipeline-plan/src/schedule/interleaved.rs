//! Interleaved 1F1B: 1F1B over several chunks a rank, which cuts the bubble by the number of chunks.
//!
//! ```text
//! p=2 v=2 m=4
//! rank 0: 0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1     2B2     2B3 0B2 0B3
//! rank 1:     1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3
//! ```
//!
//! 1. Cut the microbatches into groups (see the field `group`); a group runs chunk by chunk.
//! 2. Warm-up: `(v-1) g + 2(p-1-r)` forwards, `g` the largest group.
//! 3. One forward, one backward in turn; then the remaining backwards.
//!
//! Bubble `(p-1)(F+B+W)/v`; rank 0 holds `(pv+p-1)/v` microbatches at its peak.
//! Source: Narayanan et al., Megatron-LM (2021); groups as in PyTorch's `ScheduleInterleaved1F1B`, for the sizes that it accepts.

use super::family::{Chunks, Family, Schedule, ScheduleError, Size};
use super::interleave::{self, Backward, Groups};
use crate::plan::{PlacementKind, Plan};

/// The interleaved 1F1B schedule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Interleaved1F1B {
    /// Microbatches that go through a chunk before the next chunk starts.
    ///
    /// `None` is PyTorch's rule: `max(1, m / p)` groups. PyTorch refuses sizes at which they are not even; here some groups
    /// hold one more. `Some(g)` is Megatron's microbatch group size: groups of `g`, the last one shorter. Megatron refuses
    /// a remainder below `p`; here it joins the group before it. `Some(m)` is breadth-first.
    pub group: Option<usize>,
}

impl Schedule for Interleaved1F1B {
    fn family(&self) -> Family {
        Family::new("Interleaved1F1B", PlacementKind::Loop, Chunks::Any, "Narayanan et al. 2021, arXiv:2104.04473")
    }

    fn build(&self, size: Size) -> Result<Plan, ScheduleError> {
        let family = self.family();
        family.check_size(size)?;
        let groups = Groups::asked(&family, size, self.group, size.ranks - 1, size.ranks)?;
        let ahead = (size.chunks - 1) * groups.largest();
        interleave::plan(family.name, size, |rank| {
            interleave::row(groups, size, rank, ahead + 2 * (size.ranks - 1 - rank), Backward::Whole)
        })
    }
}
