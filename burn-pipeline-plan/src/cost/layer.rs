//! A model as a list of layers, before it is cut into stages.
//!
//! Guarantees: [`Layers`] holds at least one layer and at most [`Layers::MAX`]; no number in it is negative or
//! not a number.
//!
//! 1. [`LayerKind`] is one letter; a model is written as its letters in order (see [`Pattern`](super::Pattern)).
//! 2. [`Layer`] is what one layer takes and holds for one microbatch. Embedding and head are layers like any other,
//!    so partitioners count them.
//! 3. Seconds come from a timed run; where there is none, [`Layer::estimated`] takes them from FLOPs.

use super::dtype::Dtype;
use super::partition::PartitionError;
use super::profile::{Profile, StageCost};
use crate::plan::SkipEdge;
use crate::plan::skips::checked;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

/// What kind of layer: one ASCII letter of the model's choice, case matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "char", into = "char")]
pub struct LayerKind(char);

impl LayerKind {
    /// The kind of that letter.
    ///
    /// # Errors
    /// [`PartitionError::Kind`] if it is not an ASCII letter.
    pub fn new(letter: char) -> Result<Self, PartitionError> {
        if letter.is_ascii_alphabetic() { Ok(Self(letter)) } else { Err(PartitionError::Kind { letter }) }
    }

    /// The letter.
    pub fn letter(self) -> char {
        self.0
    }
}

impl TryFrom<char> for LayerKind {
    type Error = PartitionError;

    fn try_from(letter: char) -> Result<Self, PartitionError> {
        Self::new(letter)
    }
}

impl From<LayerKind> for char {
    fn from(kind: LayerKind) -> char {
        kind.0
    }
}

impl std::fmt::Display for LayerKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// What one layer takes and holds; seconds, FLOPs and activation bytes are those of one microbatch.
///
/// ```
/// use burn_pipeline_plan::cost::{Dtype, LayerKind, Layer};
/// let layer = Layer::new(LayerKind::new('A')?).with_parameters(1_000, Dtype::Bf16).with_flops(2e9).estimated(1e12);
/// assert_eq!((layer.parameters, layer.parameter_bytes()), (1_000, 2_000));
/// assert_eq!(layer.seconds(), 0.006);
/// # Ok::<(), burn_pipeline_plan::cost::PartitionError>(())
/// ```
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// What kind of layer it is.
    pub kind: LayerKind,
    /// Number of parameters.
    #[serde(default)]
    pub parameters: u64,
    /// Bytes of the parameters, by element type.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub bytes: BTreeMap<Dtype, u64>,
    /// Floating-point operations of the forward.
    #[serde(default)]
    pub flops: f64,
    /// Seconds of the forward.
    #[serde(default)]
    pub forward: f64,
    /// Seconds of the backward for the input.
    #[serde(default)]
    pub input: f64,
    /// Seconds of the backward for the weights.
    #[serde(default)]
    pub weight: f64,
    /// Seconds of the whole backward; without it, `input + weight`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backward: Option<f64>,
    /// Seconds of its forward fused with a whole backward; without it, both one after the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap: Option<f64>,
    /// Bytes that the forward leaves behind for the backward.
    #[serde(default)]
    pub activation_bytes: f64,
    /// The part of `activation_bytes` that the backward for the input gives back; negative where it leaves more for the
    /// weights' backward than it gives back.
    #[serde(default)]
    pub freed_at_input_bytes: f64,
    /// Bytes held beside them while the forward runs and in the backward: a layer that recomputes its forward.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub recomputed_bytes: f64,
    /// Bytes of the output, which a cut after this layer sends on.
    #[serde(default)]
    pub output_bytes: f64,
    /// Bytes of each value that the layer hands past the next one, see [`Layers::with_skips`].
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skip_bytes: f64,
}

impl Layer {
    /// A layer of which nothing is known but its kind.
    pub fn new(kind: LayerKind) -> Self {
        Self {
            kind,
            parameters: 0,
            bytes: BTreeMap::new(),
            flops: 0.0,
            forward: 0.0,
            input: 0.0,
            weight: 0.0,
            backward: None,
            overlap: None,
            activation_bytes: 0.0,
            freed_at_input_bytes: 0.0,
            recomputed_bytes: 0.0,
            output_bytes: 0.0,
            skip_bytes: 0.0,
        }
    }

    /// The same with so many parameters more, of one element type.
    pub fn with_parameters(mut self, parameters: u64, dtype: Dtype) -> Self {
        self.parameters = self.parameters.saturating_add(parameters);
        let bytes = self.bytes.entry(dtype).or_default();
        *bytes = bytes.saturating_add(parameters.saturating_mul(dtype.bytes()));
        self
    }

    /// The same with the FLOPs of its forward.
    pub fn with_flops(self, flops: f64) -> Self {
        Self { flops, ..self }
    }

    /// The same with measured seconds of `F`, `I` and `W`.
    pub fn with_seconds(self, forward: f64, input: f64, weight: f64) -> Self {
        Self { forward, input, weight, ..self }
    }

    /// The same with seconds estimated from the FLOPs at `rate` FLOPs a second: the forward's once for `F`, once for
    /// `I`, and once for `W` where there are parameters.
    pub fn estimated(self, rate: f64) -> Self {
        let seconds = self.flops / rate;
        let weight = if self.parameters > 0 { seconds } else { 0.0 };
        self.with_seconds(seconds, seconds, weight)
    }

    /// Seconds of the whole backward.
    pub fn full_backward(&self) -> f64 {
        self.backward.unwrap_or(self.input + self.weight)
    }

    /// Seconds of the forward and the whole backward together.
    pub fn seconds(&self) -> f64 {
        self.forward + self.full_backward()
    }

    /// Bytes of the parameters, of all element types.
    pub fn parameter_bytes(&self) -> u64 {
        self.bytes.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Every number that is not a count, with its name, to be checked.
    fn numbers(&self) -> [(&'static str, f64); 10] {
        [
            ("flops", self.flops),
            ("forward", self.forward),
            ("input", self.input),
            ("weight", self.weight),
            ("backward", self.full_backward()),
            ("overlap", self.overlap.unwrap_or(0.0)),
            ("activation_bytes", self.activation_bytes),
            ("recomputed_bytes", self.recomputed_bytes),
            ("output_bytes", self.output_bytes),
            ("skip_bytes", self.skip_bytes),
        ]
    }
}

/// The layers of a model in order, and the edges between those that are no neighbours, checked.
#[derive(Clone, PartialEq, Debug)]
pub struct Layers {
    layers: Vec<Layer>,
    skips: Vec<SkipEdge>,
}

impl Layers {
    /// The most layers of a model; beyond it, describe blocks of layers as one.
    pub const MAX: usize = 4096;

    /// The layers of a model, from its input to its output.
    ///
    /// # Errors
    /// [`PartitionError::NoLayer`], [`PartitionError::TooManyLayers`], or [`PartitionError::Layer`] where a number
    /// is negative, infinite or not a number, or more is freed at `I` than was held.
    pub fn new(layers: Vec<Layer>) -> Result<Self, PartitionError> {
        if layers.is_empty() {
            return Err(PartitionError::NoLayer);
        }
        if layers.len() > Self::MAX {
            return Err(PartitionError::TooManyLayers { layers: layers.len() });
        }
        for (index, layer) in layers.iter().enumerate() {
            if let Some((field, value)) = layer.numbers().into_iter().find(|(_, v)| !(v.is_finite() && *v >= 0.0)) {
                return Err(PartitionError::Layer { layer: index, field, value: value.to_string() });
            }
            let (freed, held) = (layer.freed_at_input_bytes, layer.activation_bytes + layer.recomputed_bytes);
            if !freed.is_finite() || freed > held {
                let value = format!("{freed}, with {held} bytes held");
                return Err(PartitionError::Layer { layer: index, field: "freed_at_input_bytes", value });
            }
        }
        Ok(Self { layers, skips: Vec::new() })
    }

    /// The same with values that go from a layer past the next one: the long connections of a U-Net. Wherever the model is
    /// cut, such a value goes along in the ordinary message to the next stage, or past it over an edge of the pipeline.
    ///
    /// # Errors
    /// [`PartitionError::Skip`] if an edge is none.
    pub fn with_skips(self, skips: Vec<SkipEdge>) -> Result<Self, PartitionError> {
        let skips = checked(skips, self.layers.len(), usize::MAX)?;
        Ok(Self { skips, ..self })
    }

    /// The layers in order.
    pub fn all(&self) -> &[Layer] {
        &self.layers
    }

    /// The edges past the next layer, sorted.
    pub fn skips(&self) -> &[SkipEdge] {
        &self.skips
    }

    /// Number of layers, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// The stages of a profile as layers of kind `S`, to be cut more coarsely or left as they are; what a stage takes
    /// to unshard and reduce its parameters is left out.
    ///
    /// # Errors
    /// [`PartitionError::TooManyLayers`].
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
            output_bytes: stage.message_bytes,
            skip_bytes: stage.skip_bytes,
            ..Layer::new(LayerKind('S'))
        };
        Self::new(profile.stages().iter().map(layer).collect())?.with_skips(profile.skips().to_vec())
    }

    /// The same layers for microbatches of `factor` times the size: seconds, FLOPs and bytes of activations and
    /// messages grow with it, parameters do not. Of the seconds of each operation, `fixed` stay whatever the size (or
    /// all of them, where there are fewer).
    ///
    /// # Errors
    /// [`PartitionError::Layer`] if a number is no amount any more.
    pub fn scaled(&self, factor: f64, fixed: f64) -> Result<Self, PartitionError> {
        let seconds = |of: f64| fixed.min(of) + (of - fixed).max(0.0) * factor;
        let scale = |layer: &Layer| Layer {
            flops: layer.flops * factor,
            forward: seconds(layer.forward),
            input: seconds(layer.input),
            weight: seconds(layer.weight),
            backward: layer.backward.map(seconds),
            overlap: layer.overlap.map(seconds),
            activation_bytes: layer.activation_bytes * factor,
            freed_at_input_bytes: layer.freed_at_input_bytes * factor,
            recomputed_bytes: layer.recomputed_bytes * factor,
            output_bytes: layer.output_bytes * factor,
            skip_bytes: layer.skip_bytes * factor,
            ..layer.clone()
        };
        Self::new(self.layers.iter().map(scale).collect())?.with_skips(self.skips.clone())
    }
}
