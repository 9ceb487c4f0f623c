//! GIS-H: GIS with groups of half the ranks, for about half of 1F1B's memory.
//!
//! ```text
//! p=2 v=2 m=2
//! rank 0: 0F0     2F0 0F1     2I0 2W0 2F1 0I0 0W0     2I1 2W1 0I1 0W1
//! rank 1:     1F0     3F0 3I0 3W0 1F1 1I0 1W0 3F1 3I1 3W1 1I1 1W1
//! ```
//!
//! As [`Gis`](super::Gis) with `g = ceil(p/2)` (groups as even as possible, none shorter). [`Gis`](super::Gis) with
//! groups of that size and `delayed_weight` needs as much memory as V-Half; it stalls less at p=8, v=4, but may
//! stall more at other sizes.
//!
//! Bubble `(p-1)(F+B)/v + (v-1)(p/2)(F+B-W)/v`; peak `(v+1)/(2v) p` microbatches.
//! Source: Wan et al., PipeOffload (2025).

use super::fixed::Fixed;
use super::gis::build_grouped;
use super::interleave::Groups;
use super::schedule_trait::{Chunks, ScheduleInfo};
use crate::plan::PlacementKind;

pub(super) const SCHEDULE: Fixed = Fixed {
    info: ScheduleInfo::new("GISH", PlacementKind::Loop, Chunks::Any, "Wan et al. 2025, PipeOffload, arXiv:2503.01328"),
    build: |info, size| build_grouped(info, size, Groups::even(size.microbatches, size.ranks.div_ceil(2)), false),
};
