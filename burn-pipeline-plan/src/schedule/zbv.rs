//! ZB-V, handcrafted: two chunks per rank on a V, no bubble if F = B = W, at 1F1B's memory.
//!
//! ```text
//! p=2 v=2 m=3
//! rank 0: 0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2
//! rank 1:     1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2
//! ```
//!
//! On rank r, with chunk 0 = stage r, chunk 1 = stage 2p-1-r and n = max(2p-1, m) microbatches:
//!
//! 1. `2(p-r)-1` forwards of chunk 0.
//! 2. r times F1, F0.
//! 3. p-r times F1, I1, W1.
//! 4. Until the forwards run out: F0 (if any is left), I0, W0, F1, I1, W1.
//! 5. r times I0, I1.
//! 6. p-r times I0, W0 (the oldest).
//! 7. The remaining W1, then the remaining W0.
//! 8. Drop every operation of a surplus microbatch.
//!
//! Peak p microbatches on every rank.
//! Source: Qi et al., Zero Bubble Pipeline Parallelism (2023), section 6; order as PyTorch's `ScheduleZBVZeroBubble`.

use super::dropping::drop_beyond;
use super::fixed::Fixed;
use super::schedule_trait::{Chunks, ScheduleInfo};
use crate::plan::{Action, Op, PlacementKind, Task};

pub(super) const SCHEDULE: Fixed = Fixed {
    info: ScheduleInfo {
        microbatches: "any m >= 1 (below 2p-1: the plan for 2p-1, surplus dropped)",
        ..ScheduleInfo::new(
            "ZBVZeroBubble",
            PlacementKind::V,
            Chunks::Exactly(2),
            "Qi et al. 2023, arXiv:2401.10241; PyTorch ScheduleZBVZeroBubble",
        )
    },
    build: |info, size| {
        let built = size.microbatches.max(2 * size.ranks - 1);
        info.check_length(size, built)?;
        info.plan(size, |rank| drop_beyond(row(size.ranks, rank, built), &[size.microbatches]))
    },
};

/// Writes a row. Each operation of each chunk counts its own microbatches.
struct Writer {
    stages: [usize; 2],
    forwards: [usize; 2],
    inputs: [usize; 2],
    weights: [usize; 2],
    row: Vec<Action>,
}

impl Writer {
    fn put(&mut self, op: Op, chunk: usize) {
        let count = match op {
            Op::Forward => &mut self.forwards[chunk],
            Op::BackwardInput => &mut self.inputs[chunk],
            _ => &mut self.weights[chunk],
        };
        self.row.push(Task::new(self.stages[chunk], op, *count).into());
        *count += 1;
    }

    fn put_all(&mut self, ops: &[(Op, usize)]) {
        for &(op, chunk) in ops {
            self.put(op, chunk);
        }
    }
}

/// Steps 1 to 7 for one rank.
fn row(ranks: usize, rank: usize, microbatches: usize) -> Vec<Action> {
    let (f, i, w) = (Op::Forward, Op::BackwardInput, Op::BackwardWeight);
    let stages = [rank, 2 * ranks - 1 - rank];
    let row = Vec::with_capacity(6 * microbatches);
    let mut to = Writer { stages, forwards: [0; 2], inputs: [0; 2], weights: [0; 2], row };
    for _ in 0..2 * (ranks - rank) - 1 {
        to.put(f, 0);
    }
    for _ in 0..rank {
        to.put_all(&[(f, 1), (f, 0)]);
    }
    for _ in rank..ranks {
        to.put_all(&[(f, 1), (i, 1), (w, 1)]);
    }
    while to.forwards[1] < to.forwards[0] || to.forwards[0] < microbatches {
        if to.forwards[0] < microbatches {
            to.put(f, 0);
        }
        to.put_all(&[(i, 0), (w, 0), (f, 1), (i, 1), (w, 1)]);
    }
    for _ in 0..rank {
        to.put_all(&[(i, 0), (i, 1)]);
    }
    for _ in rank..ranks {
        to.put_all(&[(i, 0), (w, 0)]);
    }
    for chunk in [1, 0] {
        while to.weights[chunk] < to.inputs[chunk] {
            to.put(w, chunk);
        }
    }
    to.row
}
