//! V-Min: about a third of 1F1B's activations, with about two thirds of its bubble.
//!
//! ```text
//! p=2 v=2 m=3
//! rank 0: 0F0 0F1     3F0 3I0 3W0     0I0 0W0 3F1 3I1 3W1 0F2 0I1 0W1 3F2 3I2 3W2     0I2 0W2
//! rank 1:     1F0 2F0         2I0 1I0 1F1 2F1 2W0 1W0 2I1 1I1 1F2 2F2 2W1 1W1 2I2 1I2 2W2 1W2
//! ```
//!
//! The [building block](super::building_block) puts, on rank r, F0 at slot `r`, F1 at `2p-1-r`, B1 at `2p+d+r` and
//! B0 at `4p+d-1-r`, where d is 2 if p is a multiple of 3, else 0.
//!
//! Peak `(p+4)/3` microbatches rounded down. If F, B and W differ, a bubble repeats with every microbatch. The
//! order is always that for F = B = W.
//! Source: Qi et al., Pipeline Parallelism with Controllable Memory (2024).

use super::building_block;
use super::fixed::Fixed;
use super::schedule_trait::{Chunks, ScheduleInfo};
use crate::plan::PlacementKind;

pub(super) const SCHEDULE: Fixed = Fixed {
    info: ScheduleInfo::new("VMin", PlacementKind::V, Chunks::Exactly(2), "Qi et al. 2024, arXiv:2405.15362"),
    build: |info, size| {
        let p = size.ranks;
        let shift = if p.is_multiple_of(3) { 2 } else { 0 };
        building_block::build(info, size, |r| [r, 2 * p - 1 - r, 2 * p + shift + r, 4 * p + shift - 1 - r])
    },
};
