//! What no candidate can beat: the analytic bound.
//!
//! 1. All ranks together do all the work: `m` microbatches over `p` ranks.
//! 2. One microbatch goes forward through all layers and back.
//!
//! Each layer is taken at its cheapest: the whole backward or its two parts, fused with a forward or not.

use super::request::{Request, Workload};
use crate::cost::Layer;

/// Seconds that no candidate of the request can beat.
pub(super) fn bound(request: &Request) -> f64 {
    request.workloads.iter().map(|workload| bound_of(workload, request.ranks)).fold(f64::INFINITY, f64::min)
}

fn bound_of(workload: &Workload, ranks: usize) -> f64 {
    let layers = workload.layers.all();
    let work: f64 = layers.iter().map(cheapest).sum();
    let there_and_back: f64 = layers.iter().map(through).sum();
    (work * workload.microbatches as f64 / ranks as f64).max(there_and_back)
}

/// Seconds of a layer's forward and backward.
fn cheapest(layer: &Layer) -> f64 {
    let apart = layer.forward + layer.full_backward().min(layer.input + layer.weight);
    layer.overlap.map_or(apart, |overlap| overlap.min(apart))
}

/// Seconds of a layer between the arrival of a microbatch's input and the gradient for it.
fn through(layer: &Layer) -> f64 {
    let apart = layer.forward + layer.full_backward().min(layer.input);
    layer.overlap.map_or(apart, |overlap| overlap.min(apart))
}
