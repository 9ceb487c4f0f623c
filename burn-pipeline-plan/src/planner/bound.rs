//! The analytic lower bound on the seconds of every candidate of a request. It is the larger of two bounds:
//!
//! 1. All ranks together do all the work of `m` microbatches, so the step takes at least `1/p` of it on `p` ranks.
//! 2. One microbatch goes forward through all layers and back.
//!
//! Pieces of a parallel vocabulary run on all ranks at once. Each layer counts with its cheapest backward: whole or in
//! two parts.
//!
//! A fused pair takes at least as long as either half, whichever stages they are of. So it hides at most its forward,
//! and only if all layers of the forward's stage have an `overlap`: the work is at least all backwards and the forwards
//! of layers without one. It is also at least all forwards. The backwards of a microbatch wait for all its forwards, so
//! they are not fused with these, and the second bound counts both.

use super::request::{Request, Workload};
use crate::cost::Layer;

/// Seconds that no candidate of the request can beat.
pub(super) fn bound(request: &Request) -> f64 {
    request.workloads.iter().map(|workload| bound_of(workload, request.ranks)).fold(f64::INFINITY, f64::min)
}

fn bound_of(workload: &Workload, ranks: usize) -> f64 {
    let sum = |of: fn(&Layer) -> f64| workload.layers.all().iter().map(of).sum::<f64>();
    let forwards = sum(|layer| layer.forward);
    let never_hidden = sum(|layer| if layer.overlap.is_some() { 0.0 } else { layer.forward });
    let backwards = sum(|layer| layer.full_backward().min(layer.input + layer.weight));
    let work = forwards.max(never_hidden + backwards);
    // No layer has to run its `W` before the gradient for the microbatch's input is made.
    let there_and_back = forwards + sum(|layer| layer.full_backward().min(layer.input));
    let pieces = workload.vocabulary.unwrap_or_default();
    let each = work / ranks as f64 + pieces.seconds();
    (each * workload.microbatches as f64).max(there_and_back + pieces.there_and_back())
}
