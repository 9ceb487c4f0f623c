//! Interleaved 1F1B: 1F1B over several chunks per rank, which divides the bubble by the number of chunks.
//!
//! ```text
//! p=2 v=2 m=4
//! rank 0: 0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1     2B2     2B3 0B2 0B3
//! rank 1:     1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3
//! ```
//!
//! 1. Cut the microbatches into groups (see the field `group`); a group runs chunk by chunk.
//! 2. Warm-up: `(v-1) g + 2(p-1-r)` forwards, where `g` is the largest group.
//! 3. One forward and one backward in turn; then the remaining backwards.
//!
//! Bubble `(p-1)(F+B+W)/v`; rank 0 holds `(pv+p-1)/v` microbatches at its peak.
//! Source: Narayanan et al., Megatron-LM (2021); groups as in PyTorch's `ScheduleInterleaved1F1B`, for the sizes
//! that it accepts.

use super::interleave::{self, Backward, Groups};
use super::schedule_trait::{Chunks, Schedule, ScheduleError, ScheduleInfo, Size};
use crate::plan::{PlacementKind, Plan};

/// The interleaved 1F1B schedule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Interleaved1F1B {
    /// The number of microbatches that go through a chunk before the next chunk starts.
    ///
    /// `None` is PyTorch's rule: `max(1, m / p)` groups. PyTorch refuses sizes that do not divide evenly; here some
    /// groups get one more. `Some(g)` is Megatron's microbatch group size: groups of `g`, the last one shorter.
    /// Megatron refuses a remainder below `p`; here it joins the previous group. `Some(m)` is breadth-first.
    pub group: Option<usize>,
}

impl Schedule for Interleaved1F1B {
    fn info(&self) -> ScheduleInfo {
        ScheduleInfo::new(
            "Interleaved1F1B",
            PlacementKind::Loop,
            Chunks::Any,
            "Narayanan et al. 2021, arXiv:2104.04473",
        )
    }

    fn build(&self, size: Size) -> Result<Plan, ScheduleError> {
        let schedule = self.info();
        schedule.check_size(size)?;
        let groups = Groups::from_option(&schedule, size, self.group, size.ranks - 1, size.ranks)?;
        let (table, ahead) = (groups.table(size.chunks), (size.chunks - 1) * groups.largest());
        schedule.plan(size, |rank| {
            interleave::row(&table, size, rank, ahead + 2 * (size.ranks - 1 - rank), Backward::Whole)
        })
    }
}
