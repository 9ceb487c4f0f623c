//! DualPipe: two routes in opposite directions, a forward of one fused with a backward of the other.
//!
//! ```text
//! p=4 v=1 m=8 (' marks the second route, parentheses a fused pair)
//! rank 0: 0F0  0F1  0F2  '3F0 '3I0 '3W0 '3F1 (0F3;'3B1) ('3F2;0B0) '3B2       ('3F3;0B1) '3B3 0I2  0W2  0I3  0W3
//! rank 1:      1F0  '2F0 1F1  '2F1 1F2  '2B0 ('2F2;1B0) (1F3;'2B1) ('2F3;1B1) '2B2       1B2  '2I3 1I3  '2W3 1W3
//! rank 2:      '1F0 2F0  '1F1 2F1  '1F2 2B0  (2F2;'1B0) ('1F3;2B1) (2F3;'1B1) 2B2        '1B2 2I3  '1I3 2W3  '1W3
//! rank 3: '0F0 '0F1 '0F2 3F0  3I0  3W0  3F1  ('0F3;3B1) (3F2;'0B0) 3B2        (3F3;'0B1) 3B3  '0I2 '0W2 '0I3 '0W3
//! ```
//!
//! Each half of the ranks runs the eight steps of [`eight_steps`], starting with its own route. The rule needs p
//! even and at least 2p microbatches, the same number on each route. For fewer, or an odd number, a larger plan is
//! built and the surplus dropped; the first route takes the odd microbatch.
//!
//! Bubble (makespan minus work): `(p/2-1)(F&B + B - 3W)`, where B is the whole backward. Peak p+1 activations. Each
//! route has a copy of the parameters; the gradients of both are summed.
//! Source: DeepSeek-AI, DualPipe (2025).

use super::dropping::drop_beyond;
use super::eight_steps;
use super::fixed::Fixed;
use super::schedule_trait::{Chunks, ScheduleInfo};
use crate::plan::{PlacementKind, StageId};

pub(super) const SCHEDULE: Fixed = Fixed {
    info: ScheduleInfo {
        microbatches: "any m >= 1, with an even number of ranks (below 2p: the plan for 2p, surplus dropped)",
        ..ScheduleInfo::new(
            "DualPipe",
            PlacementKind::Bidirectional,
            Chunks::Exactly(1),
            "DeepSeek-AI 2025, github.com/deepseek-ai/DualPipe",
        )
    },
    build: |info, size| {
        info.check_even(size)?;
        let counts = size.both_directions();
        let each = counts[0].max(size.ranks);
        info.check_length(size, 2 * each)?;
        info.plan(size, |rank| {
            let (near, far) = (rank, size.ranks - 1 - rank);
            let (near, far) = (StageId::in_route(0, near), StageId::in_route(1, far));
            let (stages, hop) = if rank < size.ranks / 2 { ([near, far], rank) } else { ([far, near], far.index()) };
            drop_beyond(eight_steps::row(stages, size.ranks / 2, hop, each), &counts)
        })
    },
};
