//! ZB-H2, handcrafted: no bubble when F = B = W, at twice 1F1B's memory.
//!
//! ```text
//! p=2 v=1 m=3
//! rank 0: 0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2
//! rank 1:     1F0 1I0 1F1 1I1 1F2 1I2 1W0 1W1 1W2
//! ```
//!
//! As [ZB-H1](super::zb_h1), with twice the lag: I of microbatch x - 2(p-1-r), W of microbatch x - 2(p-1).
//!
//! Bubble `(p-1)(F+B-2W)`; every rank holds 2p-1 activations at its peak.
//! Source: Qi et al., Zero Bubble Pipeline Parallelism (2023), section 3.2.

use super::fixed::Fixed;
use super::schedule_trait::{Chunks, ScheduleInfo};
use super::zb_h1::lagged_row;
use crate::plan::PlacementKind;

pub(super) const SCHEDULE: Fixed = Fixed {
    info: ScheduleInfo::new("ZBH2", PlacementKind::Loop, Chunks::Exactly(1), "Qi et al. 2023, arXiv:2401.10241"),
    build: |info, size| {
        info.plan(size, |rank| lagged_row(rank, size.microbatches, 2 * (size.ranks - 1 - rank), 2 * (size.ranks - 1)))
    },
};
