//! Where candidates stand: a workload, a placement's shape, a cut, and the costs that follow from them.
//!
//! Guarantees: every shape that a family of the catalogue or the synthesis may need is there once, for each workload
//! and cut; cuts that come out alike are kept once.

use super::error::DropReason;
use super::request::{Cut, Request};
use crate::cost::{Layers, MemoryLimits, Partition, PartitionOptions, Profile, StageCost, optimal_partition};
use crate::plan::{Placement, PlacementError, PlacementKind, StageId};
use rayon::prelude::*;

/// States that the search for a best cut keeps: cuts are many here.
const STATES: usize = 24;

/// A placement's shape: its kind and its stages a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    pub(super) kind: PlacementKind,
    pub(super) chunks: usize,
}

impl Shape {
    pub(super) fn place(self, ranks: usize) -> Result<Placement, PlacementError> {
        match self.kind {
            PlacementKind::V => Placement::v(ranks),
            PlacementKind::Wave => Placement::wave(ranks, self.chunks),
            PlacementKind::Bidirectional => Placement::bidirectional(ranks),
            PlacementKind::Loop | PlacementKind::Free => Placement::looped(ranks, self.chunks),
        }
    }
}

/// One workload, cut and placed.
#[derive(Clone, Debug)]
pub(super) struct Ground {
    /// Index of the workload.
    pub(super) workload: usize,
    pub(super) shape: Shape,
    pub(super) cut: Cut,
    pub(super) placement: Placement,
    pub(super) partition: Partition,
    /// Costs of the stages; parameters with all that belongs to them.
    pub(super) profile: Profile,
    /// Seconds after the last action in which replicas add up their gradients.
    pub(super) reduction: f64,
}

/// A ground that could not be made.
#[derive(Clone, Debug)]
pub(super) struct NoGround {
    pub(super) workload: usize,
    pub(super) shape: Shape,
    pub(super) cut: Cut,
    pub(super) reason: DropReason,
}

/// The shapes to try: loops, waves, and where they are asked for, V and bidirectional ones.
pub(super) fn shapes(request: &Request) -> Vec<Shape> {
    let shape = |kind, chunks| Shape { kind, chunks };
    let mut shapes = Vec::new();
    for &chunks in request.chunks.iter().filter(|&&chunks| chunks > 0) {
        shapes.push(shape(PlacementKind::Loop, chunks));
        if chunks == 2 {
            shapes.push(shape(PlacementKind::V, 2));
        }
        if chunks > 2 && request.synthesis.is_some() && request.ranks > 1 {
            shapes.push(shape(PlacementKind::Wave, chunks));
        }
        if chunks == 1 && request.ranks > 1 {
            shapes.push(shape(PlacementKind::Bidirectional, 1));
        }
    }
    let wanted = |shape: &Shape| request.placements.as_ref().is_none_or(|kinds| kinds.contains(&shape.kind));
    let mut unique = Vec::new();
    for shape in shapes.into_iter().filter(wanted) {
        if !unique.contains(&shape) {
            unique.push(shape);
        }
    }
    unique
}

/// Every ground of a request.
pub(super) fn grounds(request: &Request) -> (Vec<Ground>, Vec<NoGround>) {
    let mut wanted = Vec::new();
    for workload in 0..request.workloads.len() {
        for shape in shapes(request) {
            wanted.extend(request.cuts.iter().map(|&cut| (workload, shape, cut)));
        }
    }
    let made: Vec<_> = wanted
        .into_par_iter()
        .filter(|&(_, _, cut)| cut != Cut::Fitting || request.cap.is_some())
        .map(|(workload, shape, cut)| {
            ground(request, workload, shape, cut).map_err(|reason| NoGround { workload, shape, cut, reason })
        })
        .collect();
    let (mut grounds, mut refused): (Vec<Ground>, Vec<NoGround>) = (Vec::new(), Vec::new());
    for made in made {
        match made {
            Ok(ground) => {
                let alike = |g: &Ground| {
                    (g.workload, g.shape, &g.partition) == (ground.workload, ground.shape, &ground.partition)
                };
                if !grounds.iter().any(alike) {
                    grounds.push(ground);
                }
            }
            Err(refusal) => {
                // Too few layers are too few whatever the cut.
                let alike = |r: &NoGround| {
                    (r.workload, r.shape, &r.reason) == (refusal.workload, refusal.shape, &refusal.reason)
                };
                if !refused.iter().any(alike) {
                    refused.push(refusal);
                }
            }
        }
    }
    (grounds, refused)
}

fn ground(request: &Request, workload: usize, shape: Shape, cut: Cut) -> Result<Ground, DropReason> {
    let layers = &request.workloads[workload].layers;
    let placement = shape.place(request.ranks).map_err(crate::schedule::ScheduleError::from)?;
    let partition = match cut {
        Cut::Even => Partition::even(layers.len(), placement.stages())?,
        Cut::Optimal => best(layers, &placement, None)?,
        Cut::Fitting => best(layers, &placement, limits(request, &placement))?,
    };
    let profile = partition.profile(layers, request.links.clone())?;
    let reduction = reduction(&placement, &profile);
    let profile = with_state(&profile, request.state_factor)?;
    Ok(Ground { workload, shape, cut, placement, partition, profile, reduction })
}

fn best(layers: &Layers, placement: &Placement, memory: Option<MemoryLimits>) -> Result<Partition, DropReason> {
    let options = PartitionOptions { memory, states: STATES, ..PartitionOptions::default() };
    Ok(optimal_partition(layers, placement, &options)?.partition)
}

/// The cap, with the activations that 1F1B holds: as many microbatches as there are ranks still to come, spread over
/// the stages of a rank.
fn limits(request: &Request, placement: &Placement) -> Option<MemoryLimits> {
    let stages = placement.stages() as f64;
    let held = (0..placement.stages()).map(|stage| {
        let to_come = (stages - stage as f64) * placement.ranks() as f64 / stages;
        (to_come / placement.routes() as f64).max(1.0)
    });
    Some(MemoryLimits { cap: request.cap?, state_factor: request.state_factor, held: held.collect() })
}

/// The profile with gradients and optimizer state beside the parameters.
pub(super) fn with_state(profile: &Profile, factor: f64) -> Result<Profile, DropReason> {
    let stage = |stage: &StageCost| StageCost { weight_bytes: stage.weight_bytes * factor, ..*stage };
    Ok(profile.with_stages(profile.stages().iter().map(stage).collect())?)
}

/// In a bidirectional placement the two ranks of a stage exchange their gradients for it after the step, both ways
/// at once: the slowest pair counts.
fn reduction(placement: &Placement, profile: &Profile) -> f64 {
    if placement.routes() < 2 {
        return 0.0;
    }
    let mut seconds = std::collections::BTreeMap::<(usize, usize), f64>::new();
    for (index, stage) in profile.stages().iter().enumerate() {
        let [a, b] = [0, 1].map(|replica| placement.rank_of(StageId::in_replica(replica, index)));
        if a != b {
            *seconds.entry((a.min(b), a.max(b))).or_default() += stage.weight_bytes;
        }
    }
    let exchange = |(&(a, b), &bytes): (&(usize, usize), &f64)| {
        let one_way =
            |from, to| profile.links().link(from, to).latency + profile.links().link(from, to).occupied(bytes);
        one_way(a, b).max(one_way(b, a))
    };
    seconds.iter().map(exchange).fold(0.0, f64::max)
}
