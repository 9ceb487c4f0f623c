//! Interleaved zero bubble (PyTorch's ZB1P): interleaved, with each rank's `W` delayed to fill its bubbles.
//!
//! ```text
//! p=2 v=2 m=2
//! rank 0: 0F0 0F1 2F0 2F1     2I0 2W0 2I1 2W1 0I0 0W0 0I1 0W1
//! rank 1:     1F0 1F1 3F0 3I0 3F1 3I1 3W0 1I0 3W1 1I1 1W0 1W1
//! ```
//!
//! 1. Groups as in [`Interleaved1F1B`](super::Interleaved1F1B).
//! 2. Warm-up: `(v-1) g + (p-1-r)` forwards, half the hops of 1F1B's, since an `I` returns sooner than a `B`.
//! 3. Forward and `I` in turn; the `W` of a pair follows `r` backwards later; the remaining operations at the end.
//!
//! Bubble `(p-1)(F+B-W)/v`; every rank holds p microbatches at its peak.
//! Source: Qi et al., Zero Bubble Pipeline Parallelism (2023); order as PyTorch's `ScheduleInterleavedZeroBubble`.

use super::fixed::Fixed;
use super::gis::build_grouped;
use super::interleave::Groups;
use super::schedule_trait::{Chunks, ScheduleInfo};
use crate::plan::PlacementKind;

pub(super) const SCHEDULE: Fixed = Fixed {
    info: ScheduleInfo::new(
        "InterleavedZeroBubble",
        PlacementKind::Loop,
        Chunks::Any,
        "Qi et al. 2023, arXiv:2401.10241; PyTorch ScheduleInterleavedZeroBubble",
    ),
    build: |info, size| build_grouped(info, size, Groups::even(size.microbatches, size.ranks), true),
};
