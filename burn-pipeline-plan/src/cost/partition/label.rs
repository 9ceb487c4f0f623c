//! Dynamic programming over (stage, layers so far, loads of all ranks), for placements with several stages per
//! rank.
//!
//! Guarantees: a returned cut fits under the cap, and its largest load is below the given bound. If no label was
//! left out for lack of room, no cut is better; and if no cut is returned, none below the bound fits.
//!
//! 1. A *label* is one way to cut the first layers into the first stages, with the loads and bytes of all bins.
//! 2. A label is dropped if (a) a bin reaches the bound or the cap, (b) the bins of the remaining stages have less
//!    room than the remaining layers need, or (c) another label of the same stage and layer is no worse in any bin.
//! 3. At most `states` labels of a stage and layer are kept: the most even ones. They are chosen before the next layer
//!    is looked at, so memory is in proportion to `layers * states`.

use super::problem::Problem;
use std::collections::BTreeSet;

/// One way to cut the first layers.
#[derive(Clone, Debug)]
struct Label {
    weights: Vec<f64>,
    bytes: Vec<f64>,
    largest: f64,
    boundaries: Vec<usize>,
    /// The sum of squares of all loads, and of the share of the cap that each bin uses: lower is more even.
    unevenness: f64,
}

/// Returns the best cut below the bound, and true if no label was left out.
pub(super) fn search(problem: &Problem, bound: f64, states: usize) -> (Option<Vec<usize>>, bool) {
    let (layers, stages) = (problem.layers(), problem.stages());
    // A cut that is better only by rounding is not better.
    let bound = bound * (1.0 - 1e-12);
    let mut complete = true;
    let start = Label {
        weights: vec![0.0; problem.bins()],
        bytes: vec![0.0; problem.bins()],
        largest: 0.0,
        boundaries: Vec::new(),
        unevenness: 0.0,
    };
    let mut labels: Vec<Vec<Label>> = vec![Vec::new(); layers + 1];
    labels[0].push(start);
    for stage in 0..stages {
        let open = open_bins(problem, stage + 1);
        let last = layers - (stages - stage - 1);
        let mut next: Vec<Vec<Label>> = vec![Vec::new(); layers + 1];
        let begun = labels.iter().enumerate();
        let mut growing: Vec<(usize, &Label)> =
            begun.flat_map(|(from, labels)| labels.iter().map(move |label| (from, label))).collect();
        let first = if stage + 1 == stages { layers } else { 1 };
        for (to, ends) in next.iter_mut().enumerate().take(last + 1).skip(first) {
            growing
                .retain(|&(from, label)| from >= to || extend(problem, label, (stage, from, to), bound, &open, ends));
            complete &= keep(ends, &open, states);
        }
        labels = next;
    }
    let best = labels[layers].iter().min_by(|a, b| a.largest.total_cmp(&b.largest));
    (best.map(|label| label.boundaries.clone()), complete)
}

/// The bins of `stage` and all later stages.
fn open_bins(problem: &Problem, stage: usize) -> Vec<usize> {
    let bins = (stage..problem.stages()).flat_map(|s| problem.shares(s)).map(|share| share.bin);
    BTreeSet::from_iter(bins).into_iter().collect()
}

/// Extends a label by a stage of the layers `from..to`. Returns false if no later end fits either.
fn extend(
    problem: &Problem,
    label: &Label,
    (stage, from, to): (usize, usize, usize),
    bound: f64,
    open: &[usize],
    ends: &mut Vec<Label>,
) -> bool {
    let mut new = label.clone();
    for &share in problem.shares(stage) {
        let load = problem.load(stage, share, from, to);
        new.weights[share.bin] += load.weight;
        new.bytes[share.bin] += load.bytes;
        new.largest = new.largest.max(new.weights[share.bin]);
        // More layers only add load and bytes.
        if !problem.fits(new.bytes[share.bin]) {
            return false;
        }
    }
    if new.largest >= bound {
        return false;
    }
    let room: f64 = open.iter().map(|&bin| bound - new.weights[bin]).sum();
    if problem.to_come(stage + 1, to) > room * (1.0 + 1e-12) {
        return true;
    }
    if stage + 1 < problem.stages() {
        new.boundaries.push(to);
    }
    let squares = new.weights.iter().map(|w| w * w).sum::<f64>() / (1.0 + new.largest * new.largest);
    new.unevenness = squares + new.bytes.iter().map(|&b| problem.fullness(b).powi(2)).sum::<f64>();
    ends.push(new);
    true
}

/// Keeps the labels that no other label dominates, at most `states` of them. Returns false if some were left out.
fn keep(labels: &mut Vec<Label>, open: &[usize], states: usize) -> bool {
    labels.sort_by(|a, b| a.unevenness.total_cmp(&b.unevenness).then(a.boundaries.cmp(&b.boundaries)));
    let mut kept: Vec<Label> = Vec::with_capacity(labels.len().min(states));
    let mut complete = true;
    for label in labels.drain(..) {
        if kept.iter().any(|other| no_worse(other, &label, open)) {
            continue;
        }
        if kept.len() == states {
            complete = false;
            break;
        }
        kept.push(label);
    }
    *labels = kept;
    complete
}

/// Returns true if label `a` dominates label `b`: bins without remaining stages matter only through `largest`.
fn no_worse(a: &Label, b: &Label, open: &[usize]) -> bool {
    a.largest <= b.largest && open.iter().all(|&bin| a.weights[bin] <= b.weights[bin] && a.bytes[bin] <= b.bytes[bin])
}
