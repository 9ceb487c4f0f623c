//! A cut of a model into contiguous stages: even, by boundaries or greedy, with its costs as a profile.

use crate::cost::amount::is_amount;
use crate::cost::layer::{Layer, Peaks};
use crate::cost::layers::Layers;
use crate::cost::link::LinkCosts;
use crate::cost::partition_error::{MAX_STAGES, PartitionError};
use crate::cost::profile::Profile;
use crate::cost::stage_cost::StageCost;
use crate::plan::SkipEdge;
use std::collections::BTreeMap;
use std::ops::Range;

/// A cut of a model's layers into contiguous stages, none of them empty.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Partition {
    layers: usize,
    boundaries: Vec<usize>,
}

impl Partition {
    /// The same number of layers in each stage; if it does not divide evenly, the first stages get one more.
    ///
    /// # Errors
    /// Returns [`PartitionError::Stages`] if there are fewer layers than stages, no stages, or more than 65535.
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

    /// Stages that begin at the given layers. The first stage begins at layer 0 and is not listed.
    ///
    /// # Errors
    /// Returns [`PartitionError::Boundary`] if the boundaries do not increase, or one is 0 or beyond the last
    /// layer, and [`PartitionError::NoLayer`] if there are no layers.
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

    /// A greedy cut by weight: each stage takes layers until it has its share of the remaining weight, and leaves
    /// at least one layer for each later stage. If all weights are zero, the cut is even.
    ///
    /// Weights by parameters balance memory rather than time; for time, see [`Partition::optimal`].
    ///
    /// # Errors
    /// Returns [`PartitionError::Stages`] as in [`Partition::even`], and [`PartitionError::Weight`] if a weight is
    /// negative, infinite or NaN.
    pub fn weighted(weights: &[f64], stages: usize) -> Result<Self, PartitionError> {
        refuse_stages(weights.len(), stages)?;
        if let Some((layer, value)) = weights.iter().enumerate().find(|(_, weight)| !is_amount(**weight)) {
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

    /// A cut whose boundaries are known to be valid.
    pub(super) fn trusted(layers: usize, boundaries: Vec<usize>) -> Self {
        Self { layers, boundaries }
    }

    /// The number of layers.
    pub fn layers(&self) -> usize {
        self.layers
    }

    /// The number of stages.
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

    fn stage_of(&self, layer: usize) -> usize {
        self.boundaries.partition_point(|&start| start <= layer)
    }

    /// The costs of the stages, for the simulator. Seconds and bytes of the layers are summed; a stage's message is
    /// the output of its last layer.
    ///
    /// A skip edge inside a stage costs nothing. An edge to the next stage adds its bytes to the message. An edge
    /// past the next stage becomes a skip edge of the profile; a stage's `skip_bytes` are those of its largest such
    /// edge.
    ///
    /// If the first layers do not train, stages without a layer that does have no backward, and the first other one has
    /// `W` alone ([`Profile::train_from`]).
    ///
    /// # Errors
    /// Returns [`PartitionError::Size`] if the cut is for another number of layers, and [`PartitionError::Profile`]
    /// if the links are refused.
    pub fn profile(&self, layers: &Layers, links: LinkCosts) -> Result<Profile, PartitionError> {
        self.refuse_other(layers)?;
        let mut stages: Vec<StageCost> = self.ranges().map(|range| stage_cost(&layers.all()[range])).collect();
        let first = self.stage_of(layers.first_trained());
        if first > 0 {
            // What its layers' gradients need on their way inside the stage is a part of its `W`.
            let StageCost { weight, input, .. } = &mut stages[first];
            *weight = Some(input.unwrap_or(0.0) + weight.unwrap_or(0.0));
            *input = Some(0.0);
        }
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
        Ok(Profile::new(stages, links)?.with_skips(past.into_keys().collect())?.train_from(first)?)
    }

    /// Refuses layers whose number differs from that of the cut.
    pub(super) fn refuse_other(&self, layers: &Layers) -> Result<(), PartitionError> {
        if self.layers == layers.len() {
            return Ok(());
        }
        Err(PartitionError::Size { what: "layers", cut: self.layers, given: layers.len() })
    }
}

/// Writes the number of layers of each stage, in order: `3+3+2+2`.
impl std::fmt::Display for Partition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (stage, range) in self.ranges().enumerate() {
            write!(f, "{}{}", if stage == 0 { "" } else { "+" }, range.len())?;
        }
        Ok(())
    }
}

/// The cost of a stage of these layers, without skip edges.
fn stage_cost(inside: &[Layer]) -> StageCost {
    let sum = |of: fn(&Layer) -> f64| inside.iter().map(of).sum::<f64>();
    let whole = inside.iter().any(|l| l.backward.is_some());
    // What several layers need at once is not known.
    let peaks = if let [layer] = inside { layer.peaks } else { Peaks::default() };
    StageCost {
        forward: sum(|l| l.forward),
        input: Some(sum(|l| l.input)),
        weight: Some(sum(|l| l.weight)),
        backward: whole.then(|| sum(Layer::full_backward)),
        overlap: inside.iter().map(|l| l.overlap).sum(),
        activation_bytes: sum(|l| l.activation_bytes),
        // Sums in another order may round differently, and a profile refuses a part larger than the whole.
        freed_at_input_bytes: sum(|l| l.freed_at_input_bytes)
            .min(sum(|l| l.activation_bytes) + sum(|l| l.recomputed_bytes)),
        recomputed_bytes: sum(|l| l.recomputed_bytes),
        weight_bytes: sum(|l| l.parameter_bytes() as f64),
        message_bytes: inside.last().map_or(0.0, |l| l.output_bytes),
        forward_peak_bytes: peaks.forward,
        input_peak_bytes: peaks.input,
        weight_peak_bytes: peaks.weight,
        backward_peak_bytes: peaks.backward,
        ..StageCost::default()
    }
}

/// Refuses a number of stages that no cut of these layers has, or that no plan can have.
pub(super) fn refuse_stages(layers: usize, stages: usize) -> Result<(), PartitionError> {
    let possible = (1..=layers.min(MAX_STAGES)).contains(&stages);
    if possible { Ok(()) } else { Err(PartitionError::Stages { layers, stages }) }
}
