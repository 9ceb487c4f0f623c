//! Cuts with about the same load of the busiest rank as a given cut.
//!
//! The best cut by load is rarely unique: layers can move between the stages of one rank, or to a less busy rank,
//! without more load on the busiest rank. How well schedules fill the ranks differs between such cuts; only a
//! simulation shows which is best.
//!
//! 1. A breadth-first search starts at the layout's cut. Each move shifts one or two boundaries by one layer.
//! 2. A cut is kept if its busiest rank has at most [`SLACK`] more load: measured costs of equal layers differ a
//!    little.
//! 3. The nearest [`MOST`] cuts are returned.

use super::layout::Layout;
use super::request::{Cut, Request};
use crate::cost::{Partition, PartitionReport};

/// The share by which the load of the busiest rank may grow.
const SLACK: f64 = 0.02;

/// The most cuts beside the layout's own.
const MOST: usize = 16;

/// Other layouts with about the same load of the busiest rank; none if the layout's cut is [`Cut::Even`].
pub(super) fn alike(request: &Request, layout: &Layout) -> Vec<Layout> {
    if layout.cut == Cut::Even {
        return Vec::new();
    }
    let layers = &request.workloads[layout.workload].layers;
    let load = |cut: &Partition| {
        let report = PartitionReport::new(layers, cut, &layout.placement).ok()?;
        Some(report.rank_seconds.into_iter().fold(0.0, f64::max))
    };
    let Some(most) = load(&layout.partition).map(|load| load * (1.0 + SLACK)) else { return Vec::new() };
    let mut kept = vec![layout.partition.clone()];
    let mut next = 0;
    while next < kept.len() && kept.len() <= MOST {
        for cut in neighbours(&kept[next].clone()) {
            if !kept.contains(&cut) && load(&cut).is_some_and(|load| load <= most) {
                kept.push(cut);
            }
            // One cut may have millions of neighbours.
            if kept.len() > MOST {
                break;
            }
        }
        next += 1;
    }
    kept.into_iter().skip(1).filter_map(|cut| layout.with_cut(request, cut).ok()).collect()
}

/// The cuts with one or two boundaries one layer earlier or later. Two, because a rank may have to give up a layer for
/// the one that it takes.
fn neighbours(cut: &Partition) -> impl Iterator<Item = Partition> {
    let moves = (0..cut.boundaries().len()).flat_map(|index| [(index, -1), (index, 1)]);
    let seconds = moves.clone();
    let pairs = moves.clone().flat_map(move |first| {
        let later = seconds.clone().filter(move |second| second.0 > first.0);
        later.map(move |second| vec![first, second])
    });
    let moved = move |moves: Vec<(usize, isize)>| {
        let mut boundaries = cut.boundaries().to_vec();
        for (index, by) in moves {
            boundaries[index] = boundaries[index].checked_add_signed(by)?;
        }
        Partition::from_boundaries(cut.layers(), &boundaries).ok()
    };
    moves.clone().map(|only| vec![only]).chain(pairs).filter_map(moved)
}
