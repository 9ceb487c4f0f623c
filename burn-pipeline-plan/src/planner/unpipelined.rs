//! Candidates without a pipeline: the whole model on one rank, or on every rank.
//!
//! 1. One device: it runs all microbatches, each forward followed by its backward.
//! 2. Data parallel: each rank runs its share of the microbatches, rounded up. Then a ring all-reduce adds up the
//!    gradients: it takes `2(p-1)` latencies and sends `2(p-1)/p` of the bytes over the slowest link of the ring.

use super::error::DropReason;
use super::layout::{Layout, Shape, frozen_bytes, with_state};
use super::request::{Cut, Request};
use crate::cost::{LinkCosts, Partition};
use crate::plan::{Placement, PlacementKind, Plan};
use crate::schedule::{OneFOneB, Schedule, Size};

/// The layout and plan of the whole model on each of `replicas` ranks, for the workload of this index.
pub(super) fn whole_model(request: &Request, workload: usize, replicas: usize) -> Result<(Layout, Plan), DropReason> {
    let layers = &request.workloads[workload].layers;
    let partition = Partition::even(layers.len(), 1)?;
    // A profile refuses link overrides of ranks that its placement does not have, so they are dropped.
    let links = LinkCosts { default: request.links.default, between: Vec::new() };
    let profile = partition.profile(layers, links)?;
    let parameters: f64 = profile.stages().iter().map(|stage| stage.weight_bytes).sum();
    let trained = parameters - frozen_bytes(layers, 0..layers.len());
    let share = request.workloads[workload].microbatches.div_ceil(replicas);
    let plan = OneFOneB.build(Size::new(1, share))?;
    let layout = Layout {
        workload,
        shape: Shape { kind: PlacementKind::Loop, chunks: 1 },
        cut: Cut::Even,
        placement: Placement::looped(1, 1)?,
        profile: with_state(&profile, layers, &partition, request.state_factor)?,
        partition,
        reduction: request.links.all_reduce_seconds(replicas, trained),
    };
    Ok((layout, plan))
}
