//! Which families of the catalogue can be placed on a ground; the cost-driven one as it is in the catalogue, and with the
//! ground's costs under several limits: what it builds from costs that stand for all is sometimes better.

use super::ground::Ground;
use super::request::Request;
use crate::plan::PlacementKind;
use crate::schedule::{Chunks, ForwardOnly, MemoryLimit, Schedule, ZbAuto, ZbAutoStage, all};

/// The families whose placement the ground's is.
pub(super) fn families(request: &Request, ground: &Ground) -> Vec<(String, Box<dyn Schedule>)> {
    let (auto, forward) = (ZbAuto::default().family().name, ForwardOnly.family().name);
    let mut families: Vec<(String, Box<dyn Schedule>)> = Vec::new();
    for family in all() {
        let about = family.family();
        let chunks = match about.chunks {
            Chunks::Exactly(n) => n == ground.shape.chunks,
            Chunks::Any => true,
        };
        let wave = (about.placement, ground.shape.kind) == (PlacementKind::Wave, PlacementKind::V);
        if !chunks || (about.placement != ground.shape.kind && !wave) || about.name == forward {
            continue;
        }
        families.push((about.name.to_owned(), family));
        if about.name != auto {
            continue;
        }
        let mut limits = vec![("1p", MemoryLimit::TimesRanks(1.0)), ("2p", MemoryLimit::TimesRanks(2.0))];
        limits.extend(activations(request, ground).map(|n| ("cap", MemoryLimit::Absolute(n))));
        for (name, limit) in limits {
            families.push((format!("{} {name}", about.name), Box::new(zb_auto(ground, limit))));
        }
    }
    families
}

/// The cost-driven family under the ground's costs.
fn zb_auto(ground: &Ground, limit: MemoryLimit) -> ZbAuto {
    let stages = ground.profile.stages();
    let costs = stages.iter().map(|s| ZbAutoStage {
        forward: s.forward,
        input: s.input_backward(),
        weight: s.weight_backward(),
    });
    let crossing = (1..stages.len()).map(|rank| {
        let link = ground.profile.links().link(rank - 1, rank);
        link.latency + link.occupied(stages[rank - 1].message_bytes)
    });
    ZbAuto { costs: costs.collect(), transfer: crossing.fold(0.0, f64::max), limit, ..ZbAuto::default() }
}

/// Activations that every rank has room for under the cap.
fn activations(request: &Request, ground: &Ground) -> Option<f64> {
    let cap = request.cap?;
    let stages = ground.profile.stages().iter().filter(|stage| stage.activation_bytes > 0.0);
    let room = stages.map(|stage| ((cap - stage.weight_bytes) / stage.activation_bytes).floor());
    room.min_by(f64::total_cmp).filter(|room| *room >= 1.0)
}
