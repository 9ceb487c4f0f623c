//! 1F1B: after a warm-up of forwards, one forward and one backward in turn. One stage per rank.
//!
//! ```text
//! p=2 v=1 m=3
//! rank 0: 0F0 0F1     0B0 0F2 0B1     0B2
//! rank 1:     1F0 1B0 1F1 1B1 1F2 1B2
//! ```
//!
//! 1. Warm-up: min(p-1-r, m) forwards.
//! 2. Steady: one forward, one backward, until forwards run out.
//! 3. Cool-down: the remaining backwards.
//!
//! Bubble (p-1)(F+B+W) as GPipe's, but rank r holds at most p-r activations.
//! Source: Narayanan et al., PipeDream-Flush (2021); order as PyTorch `Schedule1F1B`.

use super::schedule_trait::{Chunks, Schedule, ScheduleError, ScheduleInfo, Size};
use crate::plan::{Action, PlacementKind, Plan};

/// The 1F1B schedule.
#[derive(Debug, Clone, Copy, Default)]
pub struct OneFOneB;

impl Schedule for OneFOneB {
    fn info(&self) -> ScheduleInfo {
        ScheduleInfo::new("1F1B", PlacementKind::Loop, Chunks::Exactly(1), "Narayanan et al. 2021, arXiv:2006.09503")
    }

    fn build(&self, size: Size) -> Result<Plan, ScheduleError> {
        self.info().check_size(size)?;
        let m = size.microbatches;
        self.info().plan(size, |rank| {
            let warmup = (size.ranks - 1 - rank).min(m);
            let mut row: Vec<Action> = (0..warmup).map(|mb| Action::forward(rank, mb)).collect();
            for mb in warmup..m {
                row.extend([Action::forward(rank, mb), Action::backward(rank, mb - warmup)]);
            }
            row.extend((m - warmup..m).map(|mb| Action::backward(rank, mb)));
            row
        })
    }
}
