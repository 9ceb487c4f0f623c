//! Chimera: two routes through the ranks in opposite directions, which fill each other's bubbles.
//!
//! ```text
//! p=4 v=1 m=4 (' marks the second route)
//! rank 0: 0F0  0F1       '3F0 '3B0 '3F1 '3B1 0B0       0B1
//! rank 1:      1F0  '2F0 1F1  '2F1 '2B0 1B0  '2B1 1B1
//! rank 2:      '1F0 2F0  '1F1 2F1  2B0  '1B0 2B1  '1B1
//! rank 3: '0F0 '0F1      3F0  3B0  3F1  3B1  '0B0      '0B1
//! ```
//!
//! 1. A unit is p microbatches, p/2 per route. In slots of one F or one B: stage s runs the forward of its j-th
//!    microbatch at `s + 2j` and the backward at `2p-1-s + 2j`. With p even, the two routes never use the same
//!    slot.
//! 2. Units follow each other every 2p slots, so that the next unit's forwards fill this one's gaps.
//! 3. A rank's row is its operations by slot. Surplus microbatches are dropped; the first route takes the odd one.
//!
//! Bubble rate `(p-2)/(2m+p-2)` if F = B+W; `(p-2)/(1.5m+p-2)` if B+W = 2F and m = p. Peak between p/2+1 and p
//! microbatches. Each route has a copy of the parameters; the gradients of both are summed.
//! Source: Li and Hoefler, Chimera (2021).

use super::dropping::drop_beyond;
use super::fixed::Fixed;
use super::schedule_trait::{Chunks, ScheduleInfo};
use crate::plan::{Action, Op, PlacementKind, StageId, Task};

pub(super) const SCHEDULE: Fixed = Fixed {
    info: ScheduleInfo {
        microbatches: "any m >= 1, with an even number of ranks",
        ..ScheduleInfo::new(
            "Chimera",
            PlacementKind::Bidirectional,
            Chunks::Exactly(1),
            "Li and Hoefler 2021, arXiv:2107.06925",
        )
    },
    build: |info, size| {
        info.check_even(size)?;
        let units = size.microbatches.div_ceil(size.ranks);
        info.plan(size, |rank| drop_beyond(row(size.ranks, rank, units), &size.both_directions()))
    },
};

/// The row of one rank for whole units, by slot.
fn row(ranks: usize, rank: usize, units: usize) -> Vec<Action> {
    let half = ranks / 2;
    let mut cells: Vec<(usize, Action)> = Vec::with_capacity(2 * units * ranks);
    for (route, index) in [(0, rank), (1, ranks - 1 - rank)] {
        let stage = StageId::in_route(route, index);
        for microbatch in 0..units * half {
            let start = 2 * ranks * (microbatch / half) + 2 * (microbatch % half);
            cells.push((start + index, Task::new(stage, Op::Forward, microbatch).into()));
            cells.push((start + 2 * ranks - 1 - index, Task::new(stage, Op::Backward, microbatch).into()));
        }
    }
    cells.sort_unstable_by_key(|&(slot, _)| slot);
    cells.into_iter().map(|(_, action)| action).collect()
}
