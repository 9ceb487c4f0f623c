//! Candidates without a pipeline: the whole model on one rank, or on every rank.
//!
//! 1. One device: it runs all microbatches, each forward followed by its backward.
//! 2. Data parallel: each rank runs its share of the microbatches, rounded up. Then a ring all-reduce adds up the
//!    gradients: it takes `2(p-1)` latencies and sends `2(p-1)/p` of the bytes over the slowest link of the ring.

use super::error::DropReason;
use super::layout::{Layout, Shape, with_state};
use super::request::{Cut, Request};
use crate::cost::{LinkCosts, Partition};
use crate::plan::{Placement, PlacementKind, Plan};
use crate::schedule::{OneFOneB, Schedule, Size};

/// The layout and plan of the whole model on each of `replicas` ranks, for the workload of this index.
pub(super) fn whole_model(request: &Request, workload: usize, replicas: usize) -> Result<(Layout, Plan), DropReason> {
    let layers = &request.workloads[workload].layers;
    let partition = Partition::even(layers.len(), 1)?;
    // Overrides may name ranks that a placement of one rank does not have, and a profile refuses those.
    let links = LinkCosts { default: request.links.default, between: Vec::new() };
    let profile = partition.profile(layers, links)?;
    let parameters: f64 = profile.stages().iter().map(|stage| stage.weight_bytes).sum();
    let share = request.workloads[workload].microbatches.div_ceil(replicas);
    let plan = OneFOneB.build(Size::new(1, share))?;
    let layout = Layout {
        workload,
        shape: Shape { kind: PlacementKind::Loop, chunks: 1 },
        cut: Cut::Even,
        placement: Placement::looped(1, 1)?,
        partition,
        profile: with_state(&profile, request.state_factor)?,
        reduction: all_reduce(&request.links, replicas, parameters),
    };
    Ok((layout, plan))
}

/// Seconds of a ring all-reduce.
fn all_reduce(links: &LinkCosts, ranks: usize, bytes: f64) -> f64 {
    if ranks < 2 {
        return 0.0;
    }
    let (p, hops) = (ranks as f64, 2.0 * (ranks as f64 - 1.0));
    hops * (0..ranks).map(|rank| links.link(rank, (rank + 1) % ranks).seconds(bytes / p)).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::LinkCost;

    #[test]
    fn a_ring_moves_each_byte_almost_twice() {
        let links = LinkCosts { default: LinkCost { latency: 0.5, bandwidth: Some(10.0) }, between: Vec::new() };
        assert_eq!(all_reduce(&links, 4, 40.0), 6.0 * 1.5);
        assert_eq!(all_reduce(&links, 1, 40.0), 0.0);
    }
}
