//! Cuts of a model into stages: contiguous, every stage with at least one layer.
//!
//! Guarantees: a [`Partition`] covers every layer once, in order, and no stage is empty.
//!
//! 1. [`Partition::even`] by number of layers; [`Partition::from_boundaries`] as told, also from a [`Pattern`];
//!    [`Partition::weighted`] greedily by weight (parameters, say).
//! 2. [`optimal_partition`](optimal_partition) makes the largest rank as small as it can be, under a memory cap.
//! 3. [`PartitionReport`] says what each stage holds; [`Partition::profile`] gives the costs of its stages to
//!    simulator and planner.

mod error;
mod label;
mod optimal;
mod pattern;
mod report;
mod search;

pub use error::PartitionError;
pub use optimal::{MemoryLimits, OptimalPartition, PartitionOptions, optimal_partition};
pub use pattern::{Pattern, PatternError, PatternProblem};
pub use report::{PartitionReport, StageReport};

use super::{Layer, Layers, LinkCosts, Profile, StageCost};
use crate::plan::SkipEdge;
use std::collections::BTreeMap;
use std::ops::Range;

/// What partitioners weigh a layer by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Measure {
    /// Seconds of `F`, `I` and `W`, measured or estimated.
    #[default]
    Seconds,
    /// Floating-point operations.
    Flops,
    /// Number of parameters.
    Parameters,
}

impl Measure {
    /// The layer's weight.
    pub fn of(self, layer: &Layer) -> f64 {
        match self {
            Measure::Seconds => layer.seconds(),
            Measure::Flops => layer.flops,
            Measure::Parameters => layer.parameters as f64,
        }
    }
}

/// A cut of layers into contiguous stages, none of them empty.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Partition {
    layers: usize,
    boundaries: Vec<usize>,
}

impl Partition {
    /// As many layers in each stage; where it does not come out even, the first stages get one more.
    ///
    /// # Errors
    /// [`PartitionError::Stages`] if there are fewer layers than stages, or no stage.
    ///
    /// ```
    /// use burn_pipeline_plan::cost::Partition;
    /// assert_eq!(Partition::even(10, 4)?.to_string(), "3+3+2+2");
    /// # Ok::<(), burn_pipeline_plan::cost::PartitionError>(())
    /// ```
    pub fn even(layers: usize, stages: usize) -> Result<Self, PartitionError> {
        refuse_stages(layers, stages)?;
        let (base, more) = (layers / stages, layers % stages);
        Ok(Self::trusted(layers, (1..stages).map(|stage| stage * base + stage.min(more)).collect()))
    }

    /// Stages that begin at the layers named; the first one begins at layer 0 and is not named.
    ///
    /// # Errors
    /// [`PartitionError::Boundary`] if they do not rise, or one is 0 or beyond the last layer;
    /// [`PartitionError::NoLayer`].
    pub fn from_boundaries(layers: usize, boundaries: &[usize]) -> Result<Self, PartitionError> {
        let last = layers.checked_sub(1).ok_or(PartitionError::NoLayer)?;
        let mut before = 0;
        for (index, &boundary) in boundaries.iter().enumerate() {
            if boundary <= before || boundary > last {
                return Err(PartitionError::Boundary { index, boundary, last });
            }
            before = boundary;
        }
        Ok(Self::trusted(layers, boundaries.to_vec()))
    }

    /// Greedily by weight: each stage takes layers until it has its share of what is left, and leaves one layer for
    /// each stage to come. By number of layers where nothing weighs anything.
    ///
    /// Weighing by parameters balances memory more than time, see [`optimal_partition`](optimal_partition).
    ///
    /// # Errors
    /// [`PartitionError::Stages`] as in [`Partition::even`], [`PartitionError::Weight`] if a weight is no amount.
    pub fn weighted(weights: &[f64], stages: usize) -> Result<Self, PartitionError> {
        refuse_stages(weights.len(), stages)?;
        if let Some((layer, value)) = weights.iter().enumerate().find(|(_, w)| !(w.is_finite() && **w >= 0.0)) {
            return Err(PartitionError::Weight { layer, value: value.to_string() });
        }
        let mut left: f64 = weights.iter().sum();
        if left == 0.0 {
            return Self::even(weights.len(), stages);
        }
        let mut boundaries = Vec::with_capacity(stages - 1);
        let mut end = 0;
        for stage in 0..stages - 1 {
            let to_come = stages - stage;
            let target = left / to_come as f64;
            let (last, mut weight) = (weights.len() - to_come, weights[end]);
            while end < last && weight < target {
                end += 1;
                weight += weights[end];
            }
            end += 1;
            left -= weight;
            boundaries.push(end);
        }
        Ok(Self::trusted(weights.len(), boundaries))
    }

    /// A cut whose boundaries are known to rise within the layers.
    fn trusted(layers: usize, boundaries: Vec<usize>) -> Self {
        Self { layers, boundaries }
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.layers
    }

    /// Number of stages.
    pub fn stages(&self) -> usize {
        self.boundaries.len() + 1
    }

    /// The layers at which stages begin, without the first stage.
    pub fn boundaries(&self) -> &[usize] {
        &self.boundaries
    }

    /// The layers of each stage, in order.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let starts = std::iter::once(0).chain(self.boundaries.iter().copied());
        let ends = self.boundaries.iter().copied().chain([self.layers]);
        starts.zip(ends).map(|(start, end)| start..end)
    }

    /// The stage that holds a layer.
    fn stage_of(&self, layer: usize) -> usize {
        self.boundaries.partition_point(|&start| start <= layer)
    }

    /// The costs of the stages, for the simulator: seconds and bytes are summed, a stage's message is its last
    /// layer's output. Values that layers hand past the next one go along in the message to the next stage; what goes
    /// past that is an edge of the profile, one for each two stages, as heavy as the heaviest that leaves its stage.
    ///
    /// # Errors
    /// [`PartitionError::Size`] if the cut is of another number of layers, [`PartitionError::Profile`] if the links
    /// are refused.
    pub fn profile(&self, layers: &Layers, links: LinkCosts) -> Result<Profile, PartitionError> {
        self.refuse_other(layers)?;
        let stage = |range: Range<usize>| {
            let inside = &layers.all()[range];
            let sum = |of: fn(&Layer) -> f64| inside.iter().map(of).sum::<f64>();
            let whole = inside.iter().any(|l| l.backward.is_some());
            StageCost {
                forward: sum(|l| l.forward),
                input: Some(sum(|l| l.input)),
                weight: Some(sum(|l| l.weight)),
                backward: whole.then(|| sum(Layer::full_backward)),
                overlap: inside.iter().map(|l| l.overlap).sum(),
                activation_bytes: sum(|l| l.activation_bytes),
                // Rounding must not make the part larger than the whole.
                freed_at_input_bytes: sum(|l| l.freed_at_input_bytes)
                    .min(sum(|l| l.activation_bytes) + sum(|l| l.recomputed_bytes)),
                recomputed_bytes: sum(|l| l.recomputed_bytes),
                weight_bytes: sum(|l| l.parameter_bytes() as f64),
                message_bytes: inside.last().map_or(0.0, |l| l.output_bytes),
                ..StageCost::default()
            }
        };
        let mut stages: Vec<StageCost> = self.ranges().map(stage).collect();
        let mut past: BTreeMap<SkipEdge, f64> = BTreeMap::new();
        for &SkipEdge { from, to } in layers.skips() {
            let (bytes, from, to) = (layers.all()[from].skip_bytes, self.stage_of(from), self.stage_of(to));
            match to - from {
                0 => {}
                1 => stages[from].message_bytes += bytes,
                _ => *past.entry(SkipEdge { from, to }).or_default() += bytes,
            }
        }
        for (edge, &bytes) in &past {
            stages[edge.from].skip_bytes = stages[edge.from].skip_bytes.max(bytes);
        }
        Ok(Profile::new(stages, links)?.with_skips(past.into_keys().collect())?)
    }

    fn refuse_other(&self, layers: &Layers) -> Result<(), PartitionError> {
        if self.layers == layers.len() {
            return Ok(());
        }
        Err(PartitionError::Size { what: "layers", cut: self.layers, given: layers.len() })
    }
}

/// Layers a stage, in order: `3+3+2+2`.
impl std::fmt::Display for Partition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (stage, range) in self.ranges().enumerate() {
            write!(f, "{}{}", if stage == 0 { "" } else { "+" }, range.len())?;
        }
        Ok(())
    }
}

fn refuse_stages(layers: usize, stages: usize) -> Result<(), PartitionError> {
    if stages == 0 || stages > layers { Err(PartitionError::Stages { layers, stages }) } else { Ok(()) }
}
