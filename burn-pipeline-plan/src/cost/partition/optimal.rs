//! The cut that minimises the load of the busiest rank, under a memory cap.
//!
//! Guarantees: the cut is never worse than the even cut, the weighted cut, or their improvement by moving single
//! boundaries. With one stage per rank it is always the best cut. With several stages per rank it is the best cut
//! if [`OptimalPartition::proved`] is true. No cut has a load below [`OptimalPartition::lower_bound`].
//!
//! 1. A rank's load is the sum of its stages' weights. In a bidirectional placement each route takes its share of
//!    the microbatches. Embedding and head are layers, so they count.
//! 2. One stage per rank: dynamic programming over (stage, layers so far), first for the smallest largest load,
//!    then for the least sum of squares among such cuts ([`super::problem`]).
//! 3. Several stages per rank (loop, V, wave, bidirectional, any map): moving boundaries gives a good cut. Then
//!    dynamic programming over states with the loads of all ranks searches for a better one ([`super::label`]). If
//!    it had to leave states out, the result is not proved.

use super::cut::{Partition, refuse_stages};
use super::label;
use super::options::PartitionOptions;
use super::problem::Problem;
use crate::cost::layers::Layers;
use crate::cost::partition_error::PartitionError;
use crate::plan::Placement;

/// The best cut found, and its quality.
#[derive(Clone, PartialEq, Debug)]
pub struct OptimalPartition {
    /// The cut.
    pub partition: Partition,
    /// The load of the busiest rank for one microbatch, in the unit of the [`Measure`](super::Measure).
    pub largest: f64,
    /// A lower bound on the load of the busiest rank over all cuts for this placement.
    pub lower_bound: f64,
    /// True if it is proved that no cut is better.
    pub proved: bool,
}

impl Partition {
    /// Finds the cut that minimises the load of the busiest rank of a placement.
    ///
    /// # Errors
    /// - Returns [`PartitionError::Stages`] if the placement has more stages than there are layers.
    /// - [`PartitionError::Memory`] if a limit is negative, infinite or NaN.
    /// - [`PartitionError::DoesNotFit`] if no cut keeps every rank under the cap.
    ///
    /// ```
    /// use burn_pipeline_plan::cost::{Layer, Layers, Partition, PartitionOptions};
    /// use burn_pipeline_plan::plan::Placement;
    /// // Four blocks, and a head as heavy as four of them.
    /// let block = Layer::new('A').with_seconds(1.0, 1.0, 1.0);
    /// let head = Layer::new('L').with_seconds(4.0, 4.0, 4.0);
    /// let layers = Layers::new([vec![block; 4], vec![head]].concat())?;
    /// let best = Partition::optimal(&layers, &Placement::looped(2, 1)?, &PartitionOptions::default())?;
    /// assert_eq!((best.partition.to_string().as_str(), best.largest, best.proved), ("4+1", 12.0, true));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn optimal(
        layers: &Layers,
        placement: &Placement,
        options: &PartitionOptions,
    ) -> Result<OptimalPartition, PartitionError> {
        let stages = placement.stages();
        refuse_stages(layers.len(), stages)?;
        options.check(stages)?;
        let problem = Problem::new(layers, placement, options);
        let found =
            if problem.is_simple() { (problem.one_a_rank(), true) } else { several(&problem, layers, options)? };
        let (Some(boundaries), proved) = found else {
            let cap = options.cap.unwrap_or(f64::INFINITY);
            return Err(PartitionError::DoesNotFit { stages, cap, proved: found.1 });
        };
        let largest = problem.loads(&boundaries).into_iter().fold(0.0, f64::max);
        let lower_bound = if proved { largest } else { problem.lower_bound().min(largest) };
        Ok(OptimalPartition { partition: Partition::trusted(layers.len(), boundaries), largest, lower_bound, proved })
    }
}

/// The most rounds of the label search. Each starts with the bound of the previous round.
const ROUNDS: usize = 4;

/// The best cut if some rank has several stages, and whether it is proved to be the best.
fn several(
    problem: &Problem,
    layers: &Layers,
    options: &PartitionOptions,
) -> Result<(Option<Vec<usize>>, bool), PartitionError> {
    let weights: Vec<f64> = layers.all().iter().map(|layer| options.measure.of(layer)).collect();
    let starts = [Partition::even(layers.len(), problem.stages())?, Partition::weighted(&weights, problem.stages())?];
    let improved = starts.into_iter().filter_map(|start| problem.improve(start.boundaries().to_vec()));
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
