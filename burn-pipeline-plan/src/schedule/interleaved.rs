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

impl Interleaved1F1B {
    /// The microbatch and chunk of each forward of a rank, in order: Megatron's schedule table. Backwards take the
    /// same pairs with the chunks from last to first.
    ///
    /// # Errors
    /// Returns [`ScheduleError::Unsupported`] as [`Schedule::build`] does.
    ///
    /// ```
    /// use burn_pipeline_plan::schedule::{Interleaved1F1B, Size};
    /// let table = Interleaved1F1B::default().table(Size::new(2, 4).with_chunks(2))?;
    /// assert_eq!(table, [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (3, 0), (2, 1), (3, 1)]);
    /// # Ok::<(), burn_pipeline_plan::schedule::ScheduleError>(())
    /// ```
    pub fn table(&self, size: Size) -> Result<Vec<(usize, usize)>, ScheduleError> {
        Ok(self.groups(size)?.table(size.chunks))
    }

    /// The number of forwards that a rank runs before its forwards and backwards alternate: Megatron's warm-up
    /// count. The rest of its [`table`](Self::table) is the steady state.
    ///
    /// # Errors
    /// Returns [`ScheduleError::Unsupported`] as [`Schedule::build`] does, and if the rank does not exist.
    ///
    /// ```
    /// use burn_pipeline_plan::schedule::{Interleaved1F1B, Size};
    /// let size = Size::new(4, 8).with_chunks(2);
    /// let warm_up = |rank| Interleaved1F1B::default().warm_up(size, rank);
    /// assert_eq!((warm_up(0)?, warm_up(3)?), (10, 4));
    /// # Ok::<(), burn_pipeline_plan::schedule::ScheduleError>(())
    /// ```
    pub fn warm_up(&self, size: Size, rank: usize) -> Result<usize, ScheduleError> {
        let groups = self.groups(size)?;
        if rank >= size.ranks {
            return self.info().refuse(size, format!("there is no rank {rank}; ranks count from 0"));
        }
        Ok(warm_up(groups, size, rank).min(size.chunks * size.microbatches))
    }

    fn groups(&self, size: Size) -> Result<Groups, ScheduleError> {
        let schedule = self.info();
        schedule.check_size(size)?;
        Groups::from_option(&schedule, size, self.group, size.ranks - 1, size.ranks)
    }
}

fn warm_up(groups: Groups, size: Size, rank: usize) -> usize {
    (size.chunks - 1) * groups.largest() + 2 * (size.ranks - 1 - rank)
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
        let groups = self.groups(size)?;
        let table = groups.table(size.chunks);
        self.info().plan(size, |rank| interleave::row(&table, size, rank, warm_up(groups, size, rank), Backward::Whole))
    }
}
