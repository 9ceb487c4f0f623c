//! GPipe: all forwards, then all backwards. One stage per rank.
//!
//! ```text
//! p=2 v=1 m=3
//! rank 0: 0F0 0F1 0F2         0B0 0B1 0B2
//! rank 1:     1F0 1F1 1F2 1B0 1B1 1B2
//! ```
//!
//! Bubble (p-1)(F+B+W); every rank holds all m activations at its peak.
//! Source: Huang et al., GPipe (2019); order as PyTorch `ScheduleGPipe`.

use super::schedule_trait::{Chunks, Schedule, ScheduleError, ScheduleInfo, Size};
use crate::plan::{Action, PlacementKind, Plan};

/// The GPipe schedule.
#[derive(Debug, Clone, Copy, Default)]
pub struct GPipe;

impl Schedule for GPipe {
    fn info(&self) -> ScheduleInfo {
        ScheduleInfo::new("GPipe", PlacementKind::Loop, Chunks::Exactly(1), "Huang et al. 2019, arXiv:1811.06965")
    }

    fn build(&self, size: Size) -> Result<Plan, ScheduleError> {
        self.info().check_size(size)?;
        let m = size.microbatches;
        self.info().plan(size, |rank| {
            let forwards = (0..m).map(|mb| Action::forward(rank, mb));
            forwards.chain((0..m).map(|mb| Action::backward(rank, mb))).collect()
        })
    }
}
