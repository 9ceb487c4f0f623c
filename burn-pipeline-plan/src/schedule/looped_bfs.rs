//! Looped breadth-first: every microbatch through a chunk before the next chunk starts; backwards in reverse.
//!
//! ```text
//! p=2 v=2 m=2
//! rank 0: 0F0 0F1 2F0 2F1         2B1 2B0 0B1 0B0
//! rank 1:     1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0
//! ```
//!
//! 1. Forwards: chunk by chunk from the first, microbatches in order.
//! 2. Backwards: chunk by chunk from the last, microbatches in reverse.
//!
//! Bubble `(p-1)(F+B+W)/v`; every rank holds all m microbatches at its peak. All forwards of a stage are
//! consecutive, and so are its backwards, so sharded parameters are gathered only twice.
//! Source: Lamy-Poirier, Breadth-First Pipeline Parallelism (2022); order as PyTorch's `ScheduleLoopedBFS`.

use super::fixed::Fixed;
use super::schedule_trait::{Chunks, ScheduleInfo};
use crate::plan::{Action, PlacementKind};

pub(super) const SCHEDULE: Fixed = Fixed {
    info: ScheduleInfo::new("LoopedBFS", PlacementKind::Loop, Chunks::Any, "Lamy-Poirier 2022, arXiv:2211.05953"),
    build: |info, size| {
        let m = size.microbatches;
        info.plan(size, |rank| {
            let stages = (0..size.chunks).map(|chunk| chunk * size.ranks + rank);
            let mut row = Vec::with_capacity(2 * m * size.chunks);
            row.extend(stages.clone().flat_map(|stage| (0..m).map(move |mb| Action::forward(stage, mb))));
            row.extend(stages.rev().flat_map(|stage| (0..m).rev().map(move |mb| Action::backward(stage, mb))));
            row
        })
    },
};
