//! Layouts: a workload's layers cut into stages and placed on ranks, with the resulting costs. Candidates are built on
//! layouts.
//!
//! Guarantees: for each workload and cut there is a layout of every placement that a schedule of the catalogue or the
//! synthesis needs. Of layouts with equal partitions, one is kept.

use super::error::DropReason;
use super::report::Dropped;
use super::request::{Cut, Request};
use crate::cost::{Layers, Partition, PartitionOptions, Profile, StageCost, VocabularyCost};
use crate::plan::{Placement, PlacementKind, StageId};
use rayon::prelude::*;
use std::ops::Range;

/// The number of states that the search for the best cut keeps: fewer than by default, since many cuts are searched.
const STATES: usize = 24;

/// The kind of a placement, and its number of stages per rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    pub(super) kind: PlacementKind,
    pub(super) chunks: usize,
}

/// A workload, cut and placed.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// The index of the workload.
    pub(super) workload: usize,
    pub(super) shape: Shape,
    pub(super) cut: Cut,
    pub(super) placement: Placement,
    pub(super) partition: Partition,
    /// Costs of the stages, and of the pieces of a parallel vocabulary. `weight_bytes` include gradients and optimizer
    /// state.
    pub(super) profile: Profile,
    /// Seconds after the last action in which copies of a stage (two routes, or data-parallel replicas) add up their
    /// gradients.
    pub(super) reduction: f64,
}

/// The shapes to try: loops; a V for 2 chunks; waves for more chunks, which only the synthesis uses; bidirectional
/// for 1 chunk.
fn shapes(request: &Request) -> Vec<Shape> {
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

/// All layouts of a request, and those that could not be made.
pub(super) fn layouts(request: &Request) -> (Vec<Layout>, Vec<Dropped>) {
    let mut wanted = Vec::new();
    for workload in 0..request.workloads.len() {
        for shape in shapes(request) {
            // A parallel vocabulary needs a placement with one route.
            if request.workloads[workload].vocabulary.is_none() || shape.kind != PlacementKind::Bidirectional {
                wanted.extend(request.cuts.iter().map(|&cut| (workload, shape, cut)));
            }
        }
    }
    wanted.retain(|&(_, _, cut)| cut != Cut::Fitting || request.cap.is_some());
    let made: Vec<_> = wanted.par_iter().map(|&(workload, shape, cut)| layout(request, workload, shape, cut)).collect();
    let (mut layouts, mut refused): (Vec<Layout>, Vec<_>) = (Vec::new(), Vec::new());
    for ((workload, shape, cut), made) in wanted.into_iter().zip(made) {
        match made {
            Ok(layout) if layouts.iter().any(|other| other.is(&layout)) => {}
            Ok(layout) => layouts.push(layout),
            // The same reason, such as too few layers for the stages, is listed for one cut only.
            Err(reason) if refused.iter().any(|(key, _, of)| (*key, of) == ((workload, shape), &reason)) => {}
            Err(reason) => refused.push(((workload, shape), cut, reason)),
        }
    }
    let dropped = |((workload, shape), cut, reason)| Dropped { what: describe(request, workload, shape, cut), reason };
    (layouts, refused.into_iter().map(dropped).collect())
}

/// Describes a workload, cut and placed.
pub(super) fn describe(request: &Request, workload: usize, Shape { kind, chunks }: Shape, cut: Cut) -> String {
    let workload = &request.workloads[workload];
    let vocabulary = if workload.vocabulary.is_some() { ", vocabulary parallel" } else { "" };
    format!("{} microbatches, {kind} placement of {chunks} a rank, {cut} cut{vocabulary}", workload.microbatches)
}

fn layout(request: &Request, workload: usize, shape: Shape, cut: Cut) -> Result<Layout, DropReason> {
    let layers = &request.workloads[workload].layers;
    let placement = Placement::of_kind(shape.kind, request.ranks, shape.chunks)?;
    let partition = match cut {
        Cut::Even => Partition::even(layers.len(), placement.stages())?,
        Cut::Optimal => best(layers, &placement, PartitionOptions::default())?,
        Cut::Fitting => best(layers, &placement, limits(request, &placement))?,
    };
    Layout::new(request, workload, shape, cut, placement, partition)
}

impl Layout {
    pub(super) fn new(
        request: &Request,
        workload: usize,
        shape: Shape,
        cut: Cut,
        placement: Placement,
        partition: Partition,
    ) -> Result<Self, DropReason> {
        let layers = &request.workloads[workload].layers;
        let profile = partition.profile(layers, request.links.clone())?;
        let reduction = reduction(&placement, &profile, layers, &partition);
        let profile = match request.workloads[workload].vocabulary {
            Some(pieces) => profile.with_vocabulary(pieces)?,
            None => profile,
        };
        let profile = with_state(&profile, layers, &partition, request.state_factor)?;
        Ok(Self { workload, shape, cut, placement, partition, profile, reduction })
    }

    /// Returns true if both have the same workload, shape and partition.
    pub(super) fn is(&self, other: &Self) -> bool {
        (self.workload, self.shape, &self.partition) == (other.workload, other.shape, &other.partition)
    }

    /// The same workload and placement with another cut.
    pub(super) fn with_cut(&self, request: &Request, partition: Partition) -> Result<Self, DropReason> {
        Self::new(request, self.workload, self.shape, self.cut, self.placement.clone(), partition)
    }
}

/// The best cut of the layers for a placement.
fn best(layers: &Layers, placement: &Placement, options: PartitionOptions) -> Result<Partition, DropReason> {
    Ok(Partition::optimal(layers, placement, &PartitionOptions { states: STATES, ..options })?.partition)
}

/// The cap, with the activations that 1F1B holds on each stage: one microbatch for each rank from this one on, divided
/// among the stages of a rank.
fn limits(request: &Request, placement: &Placement) -> PartitionOptions {
    let stages = placement.stages() as f64;
    let held = (0..placement.stages()).map(|stage| {
        let to_come = (stages - stage as f64) * placement.ranks() as f64 / stages;
        (to_come / placement.routes() as f64).max(1.0)
    });
    let (cap, state_factor, held) = (request.cap, request.state_factor, held.collect());
    PartitionOptions { cap, state_factor, held, ..PartitionOptions::default() }
}

/// The profile with gradients and optimizer state counted as bytes of parameters; layers that do not train have none.
pub(super) fn with_state(
    profile: &Profile,
    layers: &Layers,
    partition: &Partition,
    factor: f64,
) -> Result<Profile, DropReason> {
    let stage = |(stage, range): (&StageCost, Range<usize>)| {
        let frozen = frozen_bytes(layers, range);
        let weight_bytes = (stage.weight_bytes - frozen) * factor + frozen * factor.min(1.0);
        StageCost { weight_bytes, ..*stage }
    };
    let with_state = profile.with_stages(profile.stages().iter().zip(partition.ranges()).map(stage).collect())?;
    match profile.vocabulary() {
        Some(&pieces) => {
            Ok(with_state.with_vocabulary(VocabularyCost { weight_bytes: pieces.weight_bytes * factor, ..pieces })?)
        }
        None => Ok(with_state),
    }
}

/// Bytes of the parameters of these layers that do not train, and so have no gradients.
pub(super) fn frozen_bytes(layers: &Layers, range: Range<usize>) -> f64 {
    let frozen = range.start..layers.first_trained().clamp(range.start, range.end);
    layers.all()[frozen].iter().map(|layer| layer.parameter_bytes() as f64).sum()
}

/// Seconds in which the two copies of each stage in a bidirectional placement add up their gradients. After the step,
/// their two ranks exchange gradients in both directions at once. All pairs of ranks do so at once, so the slowest pair
/// counts.
fn reduction(placement: &Placement, profile: &Profile, layers: &Layers, partition: &Partition) -> f64 {
    if placement.routes() < 2 {
        return 0.0;
    }
    let mut seconds = std::collections::BTreeMap::<(usize, usize), f64>::new();
    for (index, (stage, range)) in profile.stages().iter().zip(partition.ranges()).enumerate() {
        let [a, b] = [0, 1].map(|replica| placement.rank_of(StageId::in_route(replica, index)));
        if a != b {
            *seconds.entry((a.min(b), a.max(b))).or_default() += stage.weight_bytes - frozen_bytes(layers, range);
        }
    }
    let exchange = |(&(a, b), &bytes): (&(usize, usize), &f64)| {
        let one_way = |from, to| profile.links().link(from, to).seconds(bytes);
        one_way(a, b).max(one_way(b, a))
    };
    seconds.iter().map(exchange).fold(0.0, f64::max)
}
