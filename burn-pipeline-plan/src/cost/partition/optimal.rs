//! The cut that makes the busiest rank as little busy as it can be, under a memory cap.
//!
//! Guarantees: the cut found is never worse than the even one, the weighted one, or any that moving single
//! boundaries of those leads to; with one stage a rank it is always the best there is, and with several it is where
//! [`OptimalPartition::proved`] says so. [`OptimalPartition::lower_bound`] is what no cut can beat.
//!
//! 1. A rank's load is what its stages weigh together; in a bidirectional placement each replica takes its share of
//!    the microbatches. Embedding and head are layers, so they count.
//! 2. One stage a rank: dynamic programming over (stage, layers so far), first for the smallest largest load, then
//!    for the least sum of squares under it ([`super::search`]).
//! 3. Several stages a rank (loop, V, wave, bidirectional, any map): a good cut by moving boundaries, then dynamic
//!    programming whose states carry the loads of all ranks, cut off where a rank is no better than the best so far
//!    and where another state is no worse in everything ([`super::label`]). Where too many states remain, the most even
//!    ones are kept, and the outcome is not proved.

use super::label;
use super::search::Problem;
use super::{Measure, Partition, PartitionError, refuse_stages};
use crate::cost::Layers;
use crate::plan::Placement;

/// What a rank may hold, and what its stages hold.
#[derive(Clone, PartialEq, Debug)]
pub struct MemoryLimits {
    /// Bytes that a rank may hold.
    pub cap: f64,
    /// Bytes held for each byte of parameters: 1 for the parameters, 1 more for gradients, 2 more for Adam's moments.
    pub state_factor: f64,
    /// Microbatches whose activations are held at the peak, one entry a stage; none for one microbatch each. 1F1B
    /// on p ranks holds p - s on stage s.
    pub held: Vec<f64>,
}

impl MemoryLimits {
    /// A cap on parameters, their gradients and one microbatch's activations.
    pub fn new(cap: f64) -> Self {
        Self { cap, state_factor: 2.0, held: Vec::new() }
    }

    /// Microbatches that a stage holds.
    pub(super) fn held_by(&self, stage: usize) -> f64 {
        self.held.get(stage).copied().unwrap_or(1.0)
    }

    fn check(&self, stages: usize) -> Result<(), PartitionError> {
        let refuse =
            |field, value: f64, expected| Err(PartitionError::Memory { field, value: value.to_string(), expected });
        let amount = |value: f64| value.is_finite() && value >= 0.0;
        if !amount(self.cap) {
            return refuse("cap", self.cap, None);
        }
        if !amount(self.state_factor) {
            return refuse("state_factor", self.state_factor, None);
        }
        if let Some(&held) = self.held.iter().find(|&&held| !amount(held)) {
            return refuse("held", held, None);
        }
        if !self.held.is_empty() && self.held.len() != stages {
            return refuse("held", self.held.len() as f64, Some(stages));
        }
        Ok(())
    }
}

/// What the best cut is sought for.
#[derive(Clone, PartialEq, Debug)]
pub struct PartitionOptions {
    /// What a layer weighs.
    pub measure: Measure,
    /// What a rank may hold; no limit where there is none.
    pub memory: Option<MemoryLimits>,
    /// States kept for each stage and boundary where a rank has several stages; more of them find better cuts and
    /// take longer. Default 128.
    pub states: usize,
}

impl Default for PartitionOptions {
    fn default() -> Self {
        Self { measure: Measure::default(), memory: None, states: 128 }
    }
}

/// The best cut that was found.
#[derive(Clone, PartialEq, Debug)]
pub struct OptimalPartition {
    /// The cut.
    pub partition: Partition,
    /// Load of the busiest rank, for one microbatch: seconds, FLOPs or parameters.
    pub largest: f64,
    /// No cut for this placement has a smaller load on its busiest rank.
    pub lower_bound: f64,
    /// Is it known that no cut is better?
    pub proved: bool,
}

/// The cut for this placement whose busiest rank is the least busy.
///
/// # Errors
/// [`PartitionError::Stages`] if the placement has more stages than there are layers; [`PartitionError::Memory`] where
/// a limit is no amount; [`PartitionError::DoesNotFit`] where no cut keeps every rank under the cap.
///
/// ```
/// use burn_pipeline_plan::cost::{LayerKind, Layer, Layers, PartitionOptions, Partition, optimal_partition};
/// use burn_pipeline_plan::plan::Placement;
/// // Four blocks, and a head as heavy as four of them.
/// let block = Layer::new(LayerKind::new('A')?).with_seconds(1.0, 1.0, 1.0);
/// let head = Layer::new(LayerKind::new('L')?).with_seconds(4.0, 4.0, 4.0);
/// let layers = Layers::new([vec![block; 4], vec![head]].concat())?;
/// let best = optimal_partition(&layers, &Placement::looped(2, 1)?, &PartitionOptions::default())?;
/// assert_eq!((best.partition.to_string().as_str(), best.largest, best.proved), ("4+1", 12.0, true));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn optimal_partition(
    layers: &Layers,
    placement: &Placement,
    options: &PartitionOptions,
) -> Result<OptimalPartition, PartitionError> {
    let stages = placement.stages();
    refuse_stages(layers.len(), stages)?;
    if let Some(memory) = &options.memory {
        memory.check(stages)?;
    }
    let problem = Problem::new(layers, placement, options);
    let found = if problem.is_simple() { (problem.one_a_rank(), true) } else { several(&problem, layers, options)? };
    let (Some(boundaries), proved) = found else {
        let cap = options.memory.as_ref().map_or(f64::INFINITY, |memory| memory.cap);
        return Err(PartitionError::DoesNotFit { stages, cap, proved: found.1 });
    };
    let largest = problem.loads(&boundaries).into_iter().fold(0.0, f64::max);
    let lower_bound = if proved { largest } else { problem.lower_bound().min(largest) };
    Ok(OptimalPartition { partition: Partition::trusted(layers.len(), boundaries), largest, lower_bound, proved })
}

/// Most rounds of the label search, each with the bound that the one before it found.
const ROUNDS: usize = 4;

fn several(
    problem: &Problem,
    layers: &Layers,
    options: &PartitionOptions,
) -> Result<(Option<Vec<usize>>, bool), PartitionError> {
    let weights: Vec<f64> = layers.all().iter().map(|layer| options.measure.of(layer)).collect();
    let starts = [Partition::even(layers.len(), problem.stages())?, Partition::weighted(&weights, problem.stages())?];
    let improved = starts.into_iter().filter_map(|start| problem.improve(start.boundaries));
    let mut best = improved.min_by(|a, b| problem.compare(a, b));
    for _ in 0..ROUNDS {
        let bound = best.as_ref().map_or(f64::INFINITY, |b| problem.largest(b));
        if bound <= problem.lower_bound() * (1.0 + 1e-12) {
            return Ok((best, true));
        }
        let (better, complete) = label::search(problem, bound, options.states.max(1));
        let better = better.map(|b| problem.improve(b.clone()).unwrap_or(b));
        match (better, complete) {
            (found, true) => return Ok((found.or(best), true)),
            (None, false) => return Ok((best, false)),
            (found, false) => best = found,
        }
    }
    Ok((best, false))
}
