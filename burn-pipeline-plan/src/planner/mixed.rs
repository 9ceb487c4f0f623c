//! Tensor-parallel groups of different sizes: the size of each stage's group, and the layers of the stage.
//!
//! Guarantees: every rank is in a group. Of two neighbouring groups, the size of one divides the size of the other,
//! so that messages between them can be re-cut. For each number of stages, no other sizes and cut give the busiest
//! group less load.
//!
//! 1. Each group holds one stage. Dynamic programming over (stages, layers, ranks, size of the last group) gives the
//!    least load of the busiest group for every number of stages.
//! 2. For the most promising numbers of stages, it gives the divisions (sizes and cut) with the least sum of loads
//!    under that load and under slightly larger ones. A step takes `m - 1` times the busiest load, plus the sum once.
//! 3. The few most promising divisions are priced like any layout. Divisions into groups of equal size are left out:
//!    other layouts cover them. These layouts are priced in addition to the others and take no effort from them, so the
//!    best plan never becomes worse.
//!
//! Models with skip edges, and parallel vocabularies, are not supported here.

use super::layout::{Layout, Shape};
use super::request::{Cut, Request, Workload};
use crate::cost::{Layer, Layers, Partition, PartitionError};
use crate::plan::{Placement, PlacementKind};
use std::collections::BTreeSet;

/// The number of stage counts for which the sum of loads is minimised.
const COUNTS: usize = 4;

/// Limits on the load of the busiest group, as multiples of the least.
const SLACKS: [f64; 3] = [1.0 + 1e-9, 1.1, 1.3];

/// The most divisions that are priced.
const MOST: usize = 4;

/// The most ranks for which groups of different sizes are tried: the search grows with their square.
const RANKS: usize = 64;
/// The most ranks times sizes times squared layers, with which it grows as well.
const STEPS: usize = 1 << 30;

/// A layout with groups of different sizes, and the request that it answers.
pub(super) struct Mixed {
    /// The group size of each stage.
    pub(super) sizes: Vec<usize>,
    pub(super) request: Request,
    pub(super) layout: Layout,
}

/// A division of ranks and layers: group sizes, the first layers of stages, and a lower bound on the seconds of a step.
#[derive(Clone, PartialEq, Debug)]
struct Division {
    sizes: Vec<usize>,
    boundaries: Vec<usize>,
    seconds: f64,
}

/// The loads of a workload, for the search.
struct Loads {
    sizes: Vec<usize>,
    ranks: usize,
    layers: usize,
    /// Prefix sums over layers, for each size: seconds, and bytes of parameters and their state.
    seconds: Vec<Vec<f64>>,
    bytes: Vec<Vec<f64>>,
    cap: f64,
}

/// The best division of a number of layers among a number of ranks, for one size of the last group.
#[derive(Clone, Copy)]
struct Cell {
    value: f64,
    /// Layers before the last group, and the size of the group before it.
    from: usize,
    before: usize,
}

const NOTHING: Cell = Cell { value: f64::INFINITY, from: 0, before: 0 };

/// The most promising layouts of a request with groups of different sizes; none where the search would be too long.
///
/// # Errors
/// Same as [`Layers::held_by`].
pub(super) fn mixed(request: &Request) -> Result<Vec<Mixed>, PartitionError> {
    let smaller = request.members.iter().copied().filter(|&size| size > 1 && size < request.ranks);
    let sizes: Vec<usize> = BTreeSet::from_iter(smaller.chain([1])).into_iter().collect();
    let looped = request.placements.as_ref().is_none_or(|kinds| kinds.contains(&PlacementKind::Loop));
    if sizes.len() < 2 || request.ranks > RANKS || !looped || !request.chunks.contains(&1) {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    let whole = |workload: &&Workload| workload.vocabulary.is_none() && workload.layers.skips().is_empty();
    let steps = |workload: &Workload| request.ranks * sizes.len() * workload.layers.len().pow(2);
    for workload in request.workloads.iter().filter(whole).filter(|workload| steps(workload) <= STEPS) {
        let divisions = Loads::new(request, workload, sizes.clone())?.divisions(workload.microbatches);
        found.extend(divisions.into_iter().map(|division| (division, workload)));
    }
    found.sort_by(|a, b| a.0.seconds.total_cmp(&b.0.seconds));
    found.truncate(MOST);
    let made = found.into_iter().map(|(division, workload)| Mixed::new(request, workload, division));
    // Layouts that could not be made are `None`.
    Ok(made.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

impl Mixed {
    fn new(request: &Request, workload: &Workload, division: Division) -> Result<Option<Self>, PartitionError> {
        let Division { sizes, boundaries, .. } = division;
        let partition = Partition::from_boundaries(workload.layers.len(), &boundaries)?;
        let (inside, links) = request.links.of_unequal(&sizes);
        let mut layers: Vec<Layer> = Vec::new();
        for (stage, range) in partition.ranges().enumerate() {
            let within = &inside[stage];
            let held = |size| workload.layers.all()[range.clone()].iter().map(move |layer| layer.held_by(size, within));
            layers.extend(held(sizes[stage]));
            // A message goes whole, or in as many pieces as the smaller group has members.
            let smaller = sizes.get(stage + 1).map_or(sizes[stage], |&next| next.min(sizes[stage]));
            if let (Some(last), Some(sent)) = (layers.last_mut(), held(smaller).next_back()) {
                last.output_bytes = sent.output_bytes;
            }
        }
        let layers = Layers::new(layers)?.train_from(workload.layers.first_trained())?;
        let workload = Workload { layers, ..workload.clone() };
        let request = Request { workloads: vec![workload], ranks: sizes.len(), links, ..request.clone() };
        let Ok(placement) = Placement::looped(sizes.len(), 1) else { return Ok(None) };
        let shape = Shape { kind: PlacementKind::Loop, chunks: 1 };
        let layout = Layout::new(&request, 0, shape, Cut::Optimal, placement, partition).ok();
        Ok(layout.map(|layout| Self { sizes, request, layout }))
    }
}

impl Loads {
    fn new(request: &Request, workload: &Workload, sizes: Vec<usize>) -> Result<Self, PartitionError> {
        let held = |&size: &usize| workload.layers.held_by(size, &request.links.of_groups(size, request.ranks).0);
        let held = sizes.iter().map(held).collect::<Result<Vec<_>, _>>()?;
        let sums = |of: &dyn Fn(&Layer) -> f64| held.iter().map(|layers| layers.sums(|_, layer| of(layer))).collect();
        Ok(Self {
            ranks: request.ranks,
            layers: workload.layers.len(),
            seconds: sums(&Layer::seconds),
            bytes: held.iter().map(|layers| layers.state(request.state_factor)).collect(),
            cap: request.cap.unwrap_or(f64::INFINITY),
            sizes,
        })
    }

    /// Seconds of these layers on a group of the size with this index; infinite if their parameters are above the cap.
    fn load(&self, size: usize, from: usize, to: usize) -> f64 {
        let of = |sums: &[Vec<f64>]| sums[size][to] - sums[size][from];
        if of(&self.bytes) > self.cap { f64::INFINITY } else { of(&self.seconds) }
    }

    fn at(&self, layers: usize, ranks: usize, size: usize) -> usize {
        (layers * (self.ranks + 1) + ranks) * self.sizes.len() + size
    }

    /// For each number of stages up to `stages`, the least values of all divisions whose groups have a load of at most
    /// `most`. `add` combines the value so far and a load.
    fn tables(&self, stages: usize, most: f64, add: fn(f64, f64) -> f64) -> Vec<Vec<Cell>> {
        let mut tables: Vec<Vec<Cell>> = Vec::with_capacity(stages);
        for stage in 0..stages {
            let mut next = vec![NOTHING; self.at(self.layers + 1, 0, 0)];
            for (size, &members) in self.sizes.iter().enumerate() {
                for from in stage..self.layers {
                    for ranks in members..=self.ranks {
                        let Some((value, before)) = self.before(tables.last(), from, ranks - members, members) else {
                            continue;
                        };
                        for to in from + 1..=self.layers {
                            let load = self.load(size, from, to);
                            if load > most || load.is_infinite() {
                                break;
                            }
                            let (value, cell) = (add(value, load), &mut next[self.at(to, ranks, size)]);
                            if value < cell.value {
                                *cell = Cell { value, from, before };
                            }
                        }
                    }
                }
            }
            tables.push(next);
        }
        tables
    }

    /// The least value of the stages before a group, over `layers` layers and `ranks` ranks, and the size of the last
    /// of their groups.
    fn before(&self, table: Option<&Vec<Cell>>, layers: usize, ranks: usize, members: usize) -> Option<(f64, usize)> {
        let Some(table) = table else { return (layers == 0 && ranks == 0).then_some((0.0, 0)) };
        let fits = |size: &usize| divides(self.sizes[*size], members);
        let values = (0..self.sizes.len()).filter(fits).map(|size| (table[self.at(layers, ranks, size)].value, size));
        values.filter(|(value, _)| value.is_finite()).min_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// The best division into `stages` stages, and its value.
    fn best(&self, tables: &[Vec<Cell>], stages: usize, microbatches: usize) -> Option<(f64, Division)> {
        let last = |size| tables[stages - 1][self.at(self.layers, self.ranks, size)].value;
        let mut size = (0..self.sizes.len()).min_by(|&a, &b| last(a).total_cmp(&last(b)))?;
        let value = Some(last(size)).filter(|value| value.is_finite())?;
        let (mut layers, mut ranks, mut groups, mut starts) = (self.layers, self.ranks, Vec::new(), Vec::new());
        let (mut busiest, mut sum) = (0.0_f64, 0.0);
        for table in tables[..stages].iter().rev() {
            let Cell { from, before, .. } = table[self.at(layers, ranks, size)];
            let load = self.load(size, from, layers);
            (busiest, sum) = (busiest.max(load), sum + load);
            groups.push(self.sizes[size]);
            starts.push(from);
            (layers, ranks, size) = (from, ranks - self.sizes[size], before);
        }
        groups.reverse();
        let boundaries = starts.into_iter().rev().skip(1).collect();
        let seconds = busiest * (microbatches - 1) as f64 + sum;
        Some((value, Division { sizes: groups, boundaries, seconds }))
    }

    /// The most promising divisions into groups of different sizes, best first.
    fn divisions(&self, microbatches: usize) -> Vec<Division> {
        let most = self.ranks.min(self.layers);
        let tables = self.tables(most, f64::INFINITY, f64::max);
        let counted = |stages: usize| Some((stages, self.best(&tables, stages, microbatches)?));
        let mut counts: Vec<_> = (2..=most).filter_map(counted).collect();
        counts.sort_by(|(_, a), (_, b)| a.1.seconds.total_cmp(&b.1.seconds));
        let mut divisions: Vec<Division> = Vec::new();
        for (stages, (busiest, division)) in counts.into_iter().take(COUNTS) {
            divisions.push(division);
            for slack in SLACKS {
                let tables = self.tables(stages, busiest * slack, |sum, load| sum + load);
                divisions.extend(self.best(&tables, stages, microbatches).map(|(_, division)| division));
            }
        }
        divisions.retain(|division| division.sizes.iter().any(|size| *size != division.sizes[0]));
        divisions.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        divisions.dedup();
        divisions
    }
}

/// Returns true if one size is a multiple of the other.
fn divides(a: usize, b: usize) -> bool {
    a.is_multiple_of(b) || b.is_multiple_of(a)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use crate::cost::{LinkCost, LinkCosts};
    use proptest::prelude::*;

    /// All divisions of the layers from `layer` on among `ranks` ranks.
    fn all(loads: &Loads, layer: usize, ranks: usize, last: Option<usize>) -> Vec<Vec<(usize, usize)>> {
        if layer == loads.layers {
            return if ranks == 0 { vec![Vec::new()] } else { Vec::new() };
        }
        let mut found = Vec::new();
        for (size, &members) in loads.sizes.iter().enumerate() {
            if members > ranks || last.is_some_and(|last| !divides(loads.sizes[last], members)) {
                continue;
            }
            for to in layer + 1..=loads.layers {
                for rest in all(loads, to, ranks - members, Some(size)) {
                    found.push([vec![(size, to)], rest].concat());
                }
            }
        }
        found
    }

    fn loads_of(division: &[(usize, usize)], loads: &Loads) -> Vec<f64> {
        let mut from = 0;
        let each = division.iter().map(|&(size, to)| loads.load(size, std::mem::replace(&mut from, to), to));
        each.collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn no_sizes_and_cut_load_the_busiest_group_less_and_none_under_that_load_have_a_smaller_sum(
            seconds in prop::collection::vec((1u32..9, prop::bool::ANY), 1..6),
            ranks in 2usize..7,
            three in prop::bool::ANY
        ) {
            let layer = |&(seconds, cut): &(u32, bool)| Layer {
                summed_bytes: cut.then_some(1.0),
                ..Layer::new('A').with_seconds(f64::from(seconds), f64::from(seconds), 1.0)
            };
            let workload = Workload::new(4, Layers::new(seconds.iter().map(layer).collect()).unwrap());
            let links = LinkCosts { default: LinkCost { latency: 0.0, bandwidth: Some(4.0) }, ..LinkCosts::default() };
            let request = Request::new(vec![workload.clone()], ranks, links);
            let sizes = if three { vec![1, 2, 3] } else { vec![1, 2, 4] };
            let loads = Loads::new(&request, &workload, sizes).unwrap();
            let divisions = all(&loads, 0, ranks, None);
            let most = ranks.min(seconds.len());
            let tables = loads.tables(most, f64::INFINITY, f64::max);
            for stages in 1..=most {
                let of: Vec<Vec<f64>> =
                    divisions.iter().filter(|d| d.len() == stages).map(|d| loads_of(d, &loads)).collect();
                let busiest = |loads: &Vec<f64>| loads.iter().copied().fold(0.0, f64::max);
                let least = of.iter().map(busiest).min_by(f64::total_cmp);
                let found = loads.best(&tables, stages, 4);
                prop_assert_eq!(found.is_some(), least.is_some());
                let (Some((value, _)), Some(least)) = (found, least) else { continue };
                prop_assert!((value - least).abs() < 1e-9, "{} stages: {} and {}", stages, value, least);
                let limit = least * SLACKS[1];
                let sums = of.iter().filter(|loads| busiest(loads) <= limit).map(|loads| loads.iter().sum::<f64>());
                let sum = sums.min_by(f64::total_cmp).unwrap();
                let under = loads.tables(stages, limit, |sum, load| sum + load);
                let (value, division) = loads.best(&under, stages, 4).unwrap();
                prop_assert!((value - sum).abs() < 1e-9, "{} stages: {} and {}", stages, value, sum);
                prop_assert_eq!(division.sizes.iter().sum::<usize>(), ranks);
                prop_assert_eq!(division.boundaries.len() + 1, stages);
            }
        }
    }
}
