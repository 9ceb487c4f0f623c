//! The schedules of the catalogue that fit a layout's placement.
//!
//! The cost-driven schedule (`ZBAuto`) is tried several times: with the uniform costs of the catalogue, which sometimes
//! give the better plan, and with the costs of the layout under several memory limits.

use super::layout::Layout;
use super::request::Request;
use crate::plan::PlacementKind;
use crate::schedule::{Chunks, ForwardOnly, Schedule, ZbAuto, all};

/// The schedules for the layout's placement, with the candidates' names.
pub(super) fn schedules(request: &Request, layout: &Layout) -> Vec<(String, Box<dyn Schedule>)> {
    let (auto, forward) = (ZbAuto::default().info().name, ForwardOnly.info().name);
    let mut schedules: Vec<(String, Box<dyn Schedule>)> = Vec::new();
    for schedule in all() {
        let about = schedule.info();
        let chunks = match about.chunks {
            Chunks::Exactly(n) => n == layout.shape.chunks,
            Chunks::Any => true,
        };
        // A wave of two chunks is a V.
        let wave = (about.placement, layout.shape.kind) == (PlacementKind::Wave, PlacementKind::V);
        if !chunks || (about.placement != layout.shape.kind && !wave) || about.name == forward {
            continue;
        }
        schedules.push((about.name.to_owned(), schedule));
        if about.name != auto {
            continue;
        }
        let ranks = request.ranks as f64;
        let mut limits = vec![("1p", ranks), ("2p", 2.0 * ranks)];
        limits.extend(activations(request, layout).map(|n| ("cap", n)));
        for (name, limit) in limits {
            schedules.push((format!("{} {name}", about.name), Box::new(zb_auto(layout, limit))));
        }
    }
    schedules
}

/// The cost-driven schedule with the layout's costs.
fn zb_auto(layout: &Layout, limit: f64) -> ZbAuto {
    let stages = layout.profile.stages();
    let costs = stages.iter().map(|s| [s.forward, s.input_backward(), s.weight_backward()]);
    let crossing = (1..stages.len())
        .map(|rank| layout.profile.links().link(rank - 1, rank).seconds(stages[rank - 1].message_bytes));
    ZbAuto { costs: costs.collect(), transfer: crossing.fold(0.0, f64::max), limit: Some(limit), ..ZbAuto::default() }
}

/// The number of activations that fit under the cap on every rank.
fn activations(request: &Request, layout: &Layout) -> Option<f64> {
    let cap = request.cap?;
    let stages = layout.profile.stages().iter().filter(|stage| stage.activation_bytes > 0.0);
    let room = stages.map(|stage| ((cap - stage.weight_bytes) / stage.activation_bytes).floor());
    room.min_by(f64::total_cmp).filter(|room| *room >= 1.0)
}
