//! DualPipeV: DualPipe folded on a V, with one copy of the parameters on half the ranks.
//!
//! ```text
//! p=2 v=2 m=4 (parentheses: a fused pair)
//! rank 0: 0F0 0F1 0F2 3F0 3I0 3W0 3F1 (0F3;3B1) (3F2;0B0) 3B2       (3F3;0B1) 3B3 0I2 0W2 0I3 0W3
//! rank 1:     1F0 2F0 1F1 2F1 1F2 2B0 (2F2;1B0) (1F3;2B1) (2F3;1B1) 2B2       1B2 2I3 1I3 2W3 1W3
//! ```
//!
//! Each rank runs the eight steps of [`eight_steps`] with its two stages r and 2p-1-r. The rule needs 2p
//! microbatches. For fewer, the plan for 2p is built and the surplus dropped.
//!
//! Bubble (makespan minus work), in costs of a chunk: `(p-1)(F&B + B - 3W)`, where B is the whole backward. Peak
//! 2p+1 chunk activations.
//! Source: Sea AI Lab's cut-in-half of DualPipe (2025); order as PyTorch 2.15's `ScheduleDualPipeV`.

use super::dropping::drop_beyond;
use super::eight_steps;
use super::fixed::Fixed;
use super::schedule_trait::{Chunks, ScheduleInfo};
use crate::plan::{PlacementKind, StageId};

pub(super) const SCHEDULE: Fixed = Fixed {
    info: ScheduleInfo {
        microbatches: "any m >= 1 (below 2p: the plan for 2p, surplus dropped)",
        ..ScheduleInfo::new(
            "DualPipeV",
            PlacementKind::V,
            Chunks::Exactly(2),
            "DeepSeek-AI and Sea AI Lab 2025; PyTorch 2.15 ScheduleDualPipeV",
        )
    },
    build: |info, size| {
        let built = size.microbatches.max(2 * size.ranks);
        info.check_length(size, built)?;
        info.plan(size, |rank| {
            let stages = [StageId::new(rank), StageId::new(2 * size.ranks - 1 - rank)];
            drop_beyond(eight_steps::row(stages, size.ranks, rank, built), &[size.microbatches])
        })
    },
};
