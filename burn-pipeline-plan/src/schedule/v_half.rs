//! V-Half: about half of 1F1B's activations, with about half of its bubble.
//!
//! ```text
//! p=2 v=2 m=3
//! rank 0: 0F0 0F1 0F2 3F0 3I0 3W0 3F1     0I0 3I1 3W1 3F2 3I2 0I1 3W2 0I2 0W0 0W1 0W2
//! rank 1:     1F0 2F0 1F1 2F1 2I0 2W0 1I0 1W0 1F2 2F2 2I1 1I1 2I2 1I2 2W1 2W2 1W1 1W2
//! ```
//!
//! The [building block](super::building_block) puts, on rank r, F0 at slot `2r`, F1 at `3p-2-r`, B1 at
//! `3p+d+2r-1` and B0 at `6p+d-2-r`, where d is 3 if p is even, else 0.
//!
//! Peak `(p+2)/2` microbatches rounded down. No bubble repeats with every microbatch as long as `W+2B >= 2F` and
//! `W+2F >= 2B`. The order is always that for F = B = W.
//! Source: Qi et al., Pipeline Parallelism with Controllable Memory (2024).

use super::building_block;
use super::fixed::Fixed;
use super::schedule_trait::{Chunks, ScheduleInfo};
use crate::plan::PlacementKind;

pub(super) const SCHEDULE: Fixed = Fixed {
    info: ScheduleInfo::new("VHalf", PlacementKind::V, Chunks::Exactly(2), "Qi et al. 2024, arXiv:2405.15362"),
    build: |info, size| {
        let p = size.ranks;
        let shift = if p.is_multiple_of(2) { 3 } else { 0 };
        building_block::build(info, size, |r| [2 * r, 3 * p - 2 - r, 3 * p + shift + 2 * r - 1, 6 * p + shift - 2 - r])
    },
};
