//! The cutting problem for the searches (loads and bytes of ranks under a cut), and two simple searches.
//!
//! Guarantees: [`Problem::one_a_rank`] returns the best cut. [`Problem::improve`] never returns a worse cut than
//! the given one, and only a cut that fits.
//!
//! 1. Ranks with the same stages form one *bin*, such as the two ranks of a pair in a bidirectional placement.
//! 2. Sums over layers are differences of prefix sums.
//! 3. To improve a cut, each boundary in turn moves to the best place between its neighbours, until none moves.
//!    Cuts are compared by their largest load, then by the sum of squared loads.

use super::options::PartitionOptions;
use crate::cost::layers::Layers;
use crate::plan::Placement;
use std::cmp::Ordering;

/// Tolerance for rounding when bytes are compared with the cap.
const ROUNDING: f64 = 1.0 + 1e-12;

/// A stage's part in a bin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) bin: usize,
    /// The number of times the stage is on each rank of the bin: twice on the middle rank of a bidirectional
    /// placement.
    times: f64,
}

/// Layers, bins and limits of one search.
pub(super) struct Problem {
    /// Prefix sums over the layers: weight, bytes of parameters and their state, bytes of activations.
    weight: Vec<f64>,
    state: Vec<f64>,
    activations: Vec<f64>,
    cap: Option<f64>,
    held: Vec<f64>,
    shares: Vec<Vec<Share>>,
    bins: usize,
    routes: f64,
}

/// The weight and bytes that stages add to a bin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) weight: f64,
    pub(super) bytes: f64,
}

impl Problem {
    pub(super) fn new(layers: &Layers, placement: &Placement, options: &PartitionOptions) -> Self {
        let mut bins: Vec<Vec<usize>> = Vec::new();
        for rank in 0..placement.ranks() {
            let mut held: Vec<usize> = placement.stages_of(rank).into_iter().map(|stage| stage.index()).collect();
            held.sort_unstable();
            if !held.is_empty() && !bins.contains(&held) {
                bins.push(held);
            }
        }
        let share = |stage: usize| {
            let times = |held: &Vec<usize>| held.iter().filter(|&&s| s == stage).count();
            let inside = bins.iter().enumerate().map(|(bin, held)| Share { bin, times: times(held) as f64 });
            inside.filter(|share| share.times > 0.0).collect()
        };
        // Without a cap bytes do not count: cuts that differ only in bytes are equal.
        let factor = options.cap.map_or(0.0, |_| options.state_factor);
        Self {
            weight: layers.sums(|_, layer| options.measure.of(layer)),
            state: layers.state(factor),
            activations: layers.sums(|_, layer| layer.activation_bytes),
            cap: options.cap,
            held: options.held.clone(),
            shares: (0..placement.stages()).map(share).collect(),
            bins: bins.len(),
            routes: placement.routes() as f64,
        }
    }

    pub(super) fn layers(&self) -> usize {
        self.weight.len() - 1
    }

    pub(super) fn stages(&self) -> usize {
        self.shares.len()
    }

    pub(super) fn bins(&self) -> usize {
        self.bins
    }

    /// The bins that have a stage.
    pub(super) fn shares(&self, stage: usize) -> &[Share] {
        &self.shares[stage]
    }

    /// The load that a stage with the layers `from..to` adds to one of its bins.
    pub(super) fn load(&self, stage: usize, share: Share, from: usize, to: usize) -> Load {
        let held = self.cap.map_or(0.0, |_| self.held.get(stage).copied().unwrap_or(1.0));
        let bytes = self.state[to] - self.state[from] + held * (self.activations[to] - self.activations[from]);
        Load { weight: share.times * (self.weight[to] - self.weight[from]) / self.routes, bytes: share.times * bytes }
    }

    /// Returns true if a rank may hold this many bytes.
    pub(super) fn fits(&self, bytes: f64) -> bool {
        self.cap.is_none_or(|cap| bytes <= cap * ROUNDING)
    }

    /// Bytes as a share of the cap; zero without a cap.
    pub(super) fn fullness(&self, bytes: f64) -> f64 {
        self.cap.filter(|&cap| cap > 0.0).map_or(0.0, |cap| bytes / cap)
    }

    /// The least weight that the stages from `stage` on add to all bins together if they have the layers from
    /// `from` on.
    pub(super) fn to_come(&self, stage: usize, from: usize) -> f64 {
        let times = |shares: &Vec<Share>| shares.iter().map(|share| share.times).sum::<f64>();
        let least = self.shares[stage..].iter().map(times).fold(f64::INFINITY, f64::min);
        if least.is_finite() { (self.weight[self.layers()] - self.weight[from]) * least / self.routes } else { 0.0 }
    }

    /// Returns true if every bin has one stage, so that no loads add up.
    pub(super) fn is_simple(&self) -> bool {
        self.bins == self.stages() && self.shares.iter().all(|shares| shares.len() == 1)
    }

    /// A lower bound on the largest load of any cut: an even share of all weight, or the heaviest layer.
    pub(super) fn lower_bound(&self) -> f64 {
        let share = self.to_come(0, 0) / self.bins as f64;
        let heaviest = self.weight.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max);
        let once = self.shares.iter().flatten().map(|share| share.times).fold(f64::INFINITY, f64::min);
        share.max(heaviest * once / self.routes)
    }

    /// The weight and bytes of all bins.
    fn totals(&self, boundaries: &[usize]) -> Vec<Load> {
        let mut totals = vec![Load { weight: 0.0, bytes: 0.0 }; self.bins];
        let ends = boundaries.iter().copied().chain([self.layers()]);
        let mut from = 0;
        for (stage, to) in ends.enumerate() {
            for &share in &self.shares[stage] {
                let load = self.load(stage, share, from, to);
                totals[share.bin].weight += load.weight;
                totals[share.bin].bytes += load.bytes;
            }
            from = to;
        }
        totals
    }

    /// The weights of all bins.
    pub(super) fn loads(&self, boundaries: &[usize]) -> Vec<f64> {
        self.totals(boundaries).into_iter().map(|load| load.weight).collect()
    }

    /// The weight of the heaviest bin.
    pub(super) fn largest(&self, boundaries: &[usize]) -> f64 {
        self.loads(boundaries).into_iter().fold(0.0, f64::max)
    }

    /// The criteria by which cuts are compared, in order: bytes above the cap, largest load, sum of squared loads.
    fn score(&self, boundaries: &[usize]) -> [f64; 3] {
        let totals = self.totals(boundaries);
        let excess = totals.iter().map(|load| if self.fits(load.bytes) { 0.0 } else { self.fullness(load.bytes) });
        let largest = totals.iter().map(|load| load.weight).fold(0.0, f64::max);
        [excess.sum(), largest, totals.iter().map(|load| load.weight * load.weight).sum()]
    }

    pub(super) fn compare(&self, a: &[usize], b: &[usize]) -> Ordering {
        compare(&self.score(a), &self.score(b))
    }

    /// Moves boundaries one at a time while that improves the cut. Returns `None` if the result does not fit.
    pub(super) fn improve(&self, mut boundaries: Vec<usize>) -> Option<Vec<usize>> {
        let mut best = self.score(&boundaries);
        let mut moved = true;
        while moved {
            moved = false;
            for index in 0..boundaries.len() {
                let from = index.checked_sub(1).map_or(1, |before| boundaries[before] + 1);
                let to = boundaries.get(index + 1).copied().unwrap_or(self.layers());
                let mut kept = boundaries[index];
                for place in from..to {
                    boundaries[index] = place;
                    let score = self.score(&boundaries);
                    if improves(&score, &best) {
                        (best, kept, moved) = (score, place, true);
                    }
                }
                boundaries[index] = kept;
            }
        }
        (best[0] == 0.0).then_some(boundaries)
    }

    /// The best cut if every rank has one stage; `None` if no cut fits.
    pub(super) fn one_a_rank(&self) -> Option<Vec<usize>> {
        // Two passes: the smallest largest load, then the most even cut among those with that load.
        let worst = |so_far: f64, load: f64| so_far.max(load);
        let (largest, _) = self.chain(f64::INFINITY, worst)?;
        // Squares of seconds can overflow; divided by a power of two they compare the same.
        let unit = if largest > 0.0 { largest.log2().ceil().exp2() } else { 1.0 };
        let (_, boundaries) = self.chain(largest * ROUNDING, |so_far, load| so_far + (load / unit) * (load / unit))?;
        Some(boundaries)
    }

    /// Dynamic programming over (stage, layers so far). `add` combines the loads of the stages into a value.
    /// Returns the least value of cuts whose stages fit and weigh at most `most`, and the boundaries of such a cut.
    fn chain(&self, most: f64, add: impl Fn(f64, f64) -> f64) -> Option<(f64, Vec<usize>)> {
        let (layers, stages) = (self.layers(), self.stages());
        let mut best = vec![f64::INFINITY; layers + 1];
        best[0] = 0.0;
        let mut came_from = vec![vec![0; layers + 1]; stages];
        for (stage, from_of) in came_from.iter_mut().enumerate() {
            let share = self.shares[stage][0];
            let mut next = vec![f64::INFINITY; layers + 1];
            let reached = best.iter().enumerate().take(layers).skip(stage).filter(|(_, value)| value.is_finite());
            for (from, &value) in reached {
                for to in from + 1..=layers + 1 + stage - stages {
                    let load = self.load(stage, share, from, to);
                    if load.weight > most || !self.fits(load.bytes) {
                        break;
                    }
                    let value = add(value, load.weight);
                    if value < next[to] {
                        (next[to], from_of[to]) = (value, from);
                    }
                }
            }
            best = next;
        }
        let value = best[layers];
        let mut boundaries = Vec::with_capacity(stages - 1);
        let mut end = layers;
        for from_of in came_from.iter().skip(1).rev() {
            end = from_of[end];
            boundaries.push(end);
        }
        boundaries.reverse();
        value.is_finite().then_some((value, boundaries))
    }
}

fn compare(a: &[f64; 3], b: &[f64; 3]) -> Ordering {
    a[0].total_cmp(&b[0]).then(a[1].total_cmp(&b[1])).then(a[2].total_cmp(&b[2]))
}

/// Returns true if a score is better by more than rounding; otherwise boundaries could move back and forth forever.
fn improves(new: &[f64; 3], old: &[f64; 3]) -> bool {
    let close = |a: f64, b: f64| (a - b).abs() <= 1e-12 * a.abs().max(b.abs());
    let first = (0..3).find(|&i| !close(new[i], old[i]));
    first.is_some_and(|i| new[i] < old[i])
}
