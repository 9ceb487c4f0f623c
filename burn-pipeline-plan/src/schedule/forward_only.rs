//! Forward only: every microbatch through every stage, without a backward, for evaluation.
//!
//! ```text
//! p=2 v=1 m=3
//! rank 0: 0F0 0F1 0F2
//! rank 1:     1F0 1F1 1F2
//! ```
//!
//! With several chunks per rank, a microbatch visits them in the order of the stages.
//! Source: PyTorch `_ScheduleForwardOnly` for one chunk; several chunks are an extension of it.

use super::schedule_trait::{Chunks, Schedule, ScheduleError, ScheduleInfo, Size};
use crate::plan::{Action, Placement, PlacementKind, Plan};

/// The forward-only schedule.
#[derive(Debug, Clone, Copy, Default)]
pub struct ForwardOnly;

impl ForwardOnly {
    /// The forward-only plan for any placement, to evaluate a model that another schedule trains on that placement.
    /// `microbatches` has one count per route.
    ///
    /// Each rank runs its pairs of stage and microbatch in the order of their ticks, as if a microbatch entered at
    /// every tick. All ranks share this order, so there is no deadlock.
    ///
    /// # Errors
    /// Returns [`ScheduleError::Plan`] if there is not one count per route or a count is out of range, and
    /// [`ScheduleError::Unsupported`] if the rows would not fit in memory.
    pub fn over(placement: Placement, microbatches: Vec<usize>) -> Result<Plan, ScheduleError> {
        Plan::check_counts(&placement, &microbatches)?;
        let (ranks, total) = (placement.ranks(), microbatches.iter().sum());
        let size = Size::new(ranks, total).with_chunks(placement.stages().div_ceil(ranks));
        ForwardOnly.info().check_length(size, total)?;
        let row = |rank| {
            let mut cells: Vec<(usize, usize, crate::plan::StageId)> = Vec::new();
            for stage in placement.stages_of(rank) {
                cells.extend((0..microbatches[stage.route()]).map(|m| (m + stage.index(), stage.index(), stage)));
            }
            cells.sort_unstable();
            cells.into_iter().map(|(tick, index, stage)| Action::forward(stage, tick - index)).collect()
        };
        let rows = (0..placement.ranks()).map(row).collect();
        Ok(Plan::new("ForwardOnly", placement, microbatches, rows)?)
    }
}

impl Schedule for ForwardOnly {
    fn info(&self) -> ScheduleInfo {
        ScheduleInfo::new("ForwardOnly", PlacementKind::Loop, Chunks::Any, "PyTorch _ScheduleForwardOnly")
    }

    fn build(&self, size: Size) -> Result<Plan, ScheduleError> {
        self.info().check_size(size)?;
        Self::over(Placement::looped(size.ranks, size.chunks)?, vec![size.microbatches])
    }
}
