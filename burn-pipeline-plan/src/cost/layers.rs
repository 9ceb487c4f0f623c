//! A model as a list of layers, before it is cut into stages.
//!
//! Guarantees: [`Layers`] has at least one layer and at most [`Layers::MAX`]. None of its numbers is NaN, infinite
//! or (except `freed_at_input_bytes`) negative.
//!
//! Skip edges belong to the layers. A cut turns each edge into a part of a message (to the next stage) or into a
//! skip edge of the plan. The synthesis does not see when values of skip edges arrive; the simulation that prices its
//! plans does.
//!
//! If the first layers do not train ([`Layers::train_from`]), stages made only of them have no backward.

use super::dtype::Dtype;
use super::layer::{Layer, Peaks};
use super::link::LinkCosts;
use super::partition_error::{MAX_LAYERS, PartitionError};
use super::profile::Profile;
use super::stage_cost::StageCost;
use super::vocabulary::VocabularyCost;
use crate::plan::SkipEdge;
use crate::plan::skips::checked;
use std::collections::BTreeMap;

/// The layers of a model in order, with its skip edges; validated.
#[derive(Clone, PartialEq, Debug)]
pub struct Layers {
    layers: Vec<Layer>,
    skips: Vec<SkipEdge>,
    first_trained: usize,
}

impl Layers {
    /// The most layers of a model. For a larger one, describe blocks of layers as one layer.
    pub const MAX: usize = MAX_LAYERS;

    /// A model of these layers, from its input to its output.
    ///
    /// # Errors
    /// Returns [`PartitionError::NoLayer`], [`PartitionError::TooManyLayers`], [`PartitionError::Kind`] if a kind
    /// is not an ASCII letter, or [`PartitionError::Layer`] if a number is negative, infinite or NaN, or `I` frees
    /// more than is held.
    pub fn new(layers: Vec<Layer>) -> Result<Self, PartitionError> {
        if layers.is_empty() {
            return Err(PartitionError::NoLayer);
        }
        if layers.len() > Self::MAX {
            return Err(PartitionError::TooManyLayers { layers: layers.len() });
        }
        for (index, layer) in layers.iter().enumerate() {
            if !layer.kind.is_ascii_alphabetic() {
                return Err(PartitionError::Kind { letter: layer.kind });
            }
            if let Some((field, value)) = layer.check() {
                return Err(PartitionError::Layer { layer: index, field, value });
            }
            let (freed, held) = (layer.freed_at_input_bytes, layer.activation_bytes + layer.recomputed_bytes);
            if !freed.is_finite() || freed > held {
                let value = format!("{freed}, with {held} bytes held");
                return Err(PartitionError::Layer { layer: index, field: "freed_at_input_bytes", value });
            }
        }
        Ok(Self { layers, skips: Vec::new(), first_trained: 0 })
    }

    /// The same layers with skip edges: values that a layer passes beyond the next one, such as the long
    /// connections of a U-Net. When the model is cut, such a value stays inside a stage, is part of the message to
    /// the next stage, or goes over a skip edge of the profile.
    ///
    /// # Errors
    /// Returns [`PartitionError::Skip`] if an edge does not go past the next layer, leads out of the model, or is
    /// listed twice.
    pub fn with_skips(self, skips: Vec<SkipEdge>) -> Result<Self, PartitionError> {
        let skips = checked(skips, self.layers.len(), usize::MAX)?;
        Ok(Self { skips, ..self })
    }

    /// The same layers for a model that trains from this layer on: layers before it have no backward and hold nothing
    /// for one, and no gradient leaves it towards the input. Unchanged for layer 0.
    ///
    /// ```
    /// use burn_pipeline_plan::cost::{Layer, Layers};
    /// let layer = Layer { activation_bytes: 8.0, ..Layer::new('A').with_seconds(1.0, 1.0, 1.0) };
    /// let layers = Layers::new(vec![layer; 3])?.train_from(1)?;
    /// let seconds: Vec<f64> = layers.all().iter().map(|layer| layer.seconds()).collect();
    /// assert_eq!((seconds, layers.all()[0].activation_bytes), (vec![1.0, 2.0, 3.0], 0.0));
    /// # Ok::<(), burn_pipeline_plan::cost::PartitionError>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`PartitionError::FirstTrained`] if there is no such layer, or if an earlier call with a later layer has
    /// removed its backward.
    pub fn train_from(self, first: usize) -> Result<Self, PartitionError> {
        let count = self.layers.len();
        if first >= count || first < self.first_trained {
            return Err(PartitionError::FirstTrained { first, layers: count });
        }
        let layer = |(index, layer): (usize, Layer)| match first {
            0 => layer,
            _ if index < first => layer.frozen(),
            _ if index == first => layer.first_trained(),
            _ => layer,
        };
        let layers = self.layers.into_iter().enumerate().map(layer).collect();
        Ok(Self { layers, first_trained: first, ..self })
    }

    /// The first layer that trains; see [`Layers::train_from`].
    pub fn first_trained(&self) -> usize {
        self.first_trained
    }

    /// The same skip edges and first layer that trains, with other costs of the layers.
    ///
    /// # Errors
    /// Returns the errors of [`Layers::new`], and [`PartitionError::FirstTrained`] or [`PartitionError::Skip`] if there
    /// are fewer layers now.
    pub fn with_costs(&self, layers: Vec<Layer>) -> Result<Self, PartitionError> {
        let layers = Self::new(layers)?.with_skips(self.skips.clone())?;
        layers.train_from(self.first_trained)
    }

    /// All layers, in order.
    pub fn all(&self) -> &[Layer] {
        &self.layers
    }

    /// The sums of `of`, which takes an index and its layer, over the first `n` layers, for every `n`.
    pub(crate) fn sums(&self, of: impl Fn(usize, &Layer) -> f64) -> Vec<f64> {
        let sums = self.layers.iter().enumerate().scan(0.0, |sum, (index, layer)| {
            *sum += of(index, layer);
            Some(*sum)
        });
        std::iter::once(0.0).chain(sums).collect()
    }

    /// The bytes of parameters, gradients and optimizer state, which take `factor` times the parameters' bytes where
    /// layers train, of the first `n` layers, for every `n`.
    pub(crate) fn state(&self, factor: f64) -> Vec<f64> {
        self.sums(|index, layer| {
            let factor = if index < self.first_trained { factor.min(1.0) } else { factor };
            layer.parameter_bytes() as f64 * factor
        })
    }

    /// The skip edges, sorted.
    pub fn skips(&self) -> &[SkipEdge] {
        &self.skips
    }

    /// The number of layers, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// The layers between an embedding and a head, and the costs of a rank's pieces of these two over `ranks`
    /// ranks. The first layer is the embedding, the last one the head. See [`VocabularyCost::of_layers`].
    ///
    /// # Errors
    /// Returns [`PartitionError::Vocabulary`] if there is no layer between the two, if a skip edge starts at the
    /// embedding or ends at the head, or if not all layers train.
    ///
    /// ```
    /// use burn_pipeline_plan::cost::{Layer, Layers};
    /// let block = Layer { output_bytes: 8.0, ..Layer::new('A').with_seconds(1.0, 1.0, 1.0) };
    /// let head = Layer::new('L').with_seconds(4.0, 4.0, 4.0);
    /// let layers = Layers::new(vec![Layer::new('E'), block.clone(), block, head])?;
    /// let (between, pieces) = layers.vocabulary_parallel(4)?;
    /// assert_eq!((between.len(), pieces.head_forward, pieces.hidden_bytes), (2, 1.0, 8.0));
    /// # Ok::<(), burn_pipeline_plan::cost::PartitionError>(())
    /// ```
    pub fn vocabulary_parallel(&self, ranks: usize) -> Result<(Self, VocabularyCost), PartitionError> {
        let [embedding, between @ .., head] = &self.layers[..] else { return Err(PartitionError::Vocabulary) };
        let (last, inside) =
            (self.layers.len() - 1, |edge: &SkipEdge| edge.from > 0 && edge.to < self.layers.len() - 1);
        if between.is_empty() || self.first_trained > 0 || !self.skips.iter().all(inside) {
            return Err(PartitionError::Vocabulary);
        }
        let pieces = VocabularyCost::of_layers(embedding, head, self.layers[last - 1].output_bytes, ranks);
        let skips = self.skips.iter().map(|edge| SkipEdge { from: edge.from - 1, to: edge.to - 1 }).collect();
        Ok((Self::new(between.to_vec())?.with_skips(skips)?, pieces))
    }

    /// The same layers on one member of a tensor-parallel group ([`Layer::held_by`]).
    ///
    /// # Errors
    /// Returns the errors of [`Layers::new`].
    pub fn held_by(&self, members: usize, links: &LinkCosts) -> Result<Self, PartitionError> {
        let layers = self.layers.iter().map(|layer| layer.held_by(members, links)).collect();
        self.with_costs(layers)
    }

    /// The stages of a profile as layers of kind `S`, to be kept or cut more coarsely. Peaks hold for stages that are
    /// kept. The seconds of `UNSHARD` and `REDUCE_GRAD`, bytes of gradients and optimizer state, and the pieces of a
    /// parallel vocabulary are not part of layers.
    ///
    /// # Errors
    /// Returns [`PartitionError::TooManyLayers`] if there are more than [`Layers::MAX`] stages.
    pub fn of_profile(profile: &Profile) -> Result<Self, PartitionError> {
        let layer = |stage: &StageCost| Layer {
            bytes: BTreeMap::from([(Dtype::I8, stage.weight_bytes.ceil() as u64)]),
            forward: stage.forward,
            input: stage.input_backward(),
            weight: stage.weight_backward(),
            backward: stage.backward,
            overlap: stage.overlap,
            activation_bytes: stage.activation_bytes,
            freed_at_input_bytes: stage.freed_at_input_bytes,
            recomputed_bytes: stage.recomputed_bytes,
            peaks: Peaks {
                forward: stage.forward_peak_bytes,
                input: stage.input_peak_bytes,
                weight: stage.weight_peak_bytes,
                backward: stage.backward_peak_bytes,
            },
            output_bytes: stage.message_bytes,
            skip_bytes: stage.skip_bytes,
            ..Layer::new('S')
        };
        let layers = Self::new(profile.stages().iter().map(layer).collect())?.with_skips(profile.skips().to_vec())?;
        layers.train_from(profile.first_trained())
    }

    /// The same layers for microbatches of `factor` times the size. Seconds, FLOPs and bytes of activations and
    /// messages are multiplied by `factor`; parameters do not change. The first `fixed` seconds of each operation
    /// do not depend on the size and do not change.
    ///
    /// # Errors
    /// Returns [`PartitionError::Layer`] if a number becomes negative, infinite or NaN.
    pub fn scaled(&self, factor: f64, fixed: f64) -> Result<Self, PartitionError> {
        let seconds = |of: f64| fixed.min(of) + (of - fixed).max(0.0) * factor;
        let scale = |layer: &Layer| Layer {
            flops: layer.flops * factor,
            forward: seconds(layer.forward),
            input: seconds(layer.input),
            weight: seconds(layer.weight),
            backward: layer.backward.map(seconds),
            overlap: layer.overlap.map(seconds),
            output_bytes: layer.output_bytes * factor,
            skip_bytes: layer.skip_bytes * factor,
            summed_bytes: layer.summed_bytes.map(|bytes| bytes * factor),
            ..layer.with_bytes_held(factor)
        };
        self.with_costs(self.layers.iter().map(scale).collect())
    }
}
