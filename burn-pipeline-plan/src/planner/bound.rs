//! The analytic lower bound on the seconds of every candidate of a request. It is the larger of two bounds:
//!
//! 1. All ranks together do all the work of `m` microbatches, so the step takes at least `1/p` of it on `p` ranks.
//! 2. One microbatch goes forward through all layers and back.
//!
//! Pieces of a parallel vocabulary run on all ranks at once. Each layer counts with its cheapest variant: a whole
//! backward or its two parts, fused with a forward or not.

use super::request::{Request, Workload};
use crate::cost::Layer;

/// Seconds that no candidate of the request can beat.
pub(super) fn bound(request: &Request) -> f64 {
    request.workloads.iter().map(|workload| bound_of(workload, request.ranks)).fold(f64::INFINITY, f64::min)
}

fn bound_of(workload: &Workload, ranks: usize) -> f64 {
    // The least seconds of a layer's forward and a backward of these seconds.
    let least = |layer: &Layer, backward: f64| {
        let serial = layer.forward + layer.full_backward().min(backward);
        layer.overlap.map_or(serial, |overlap| overlap.min(serial))
    };
    let layers = workload.layers.all();
    let work: f64 = layers.iter().map(|layer| least(layer, layer.input + layer.weight)).sum();
    // No layer has to run its `W` before the gradient for the microbatch's input is made.
    let there_and_back: f64 = layers.iter().map(|layer| least(layer, layer.input)).sum();
    let pieces = workload.vocabulary.unwrap_or_default();
    let each = work / ranks as f64 + pieces.seconds();
    (each * workload.microbatches as f64).max(there_and_back + pieces.there_and_back())
}
