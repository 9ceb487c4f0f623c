//! One layer of a model: its seconds and bytes for one microbatch.
//!
//! Embedding and head are layers like any other, so partitioners count them. Seconds come from a timed run, or from
//! FLOPs ([`Layer::estimated`]).

use super::amount::{amounts, is_amount, is_default};
use super::dtype::Dtype;
use super::link::LinkCosts;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The peak bytes while an operation runs on a microbatch, as far as they are known; see
/// [`StageCost::forward_peak_bytes`](super::StageCost::forward_peak_bytes) and the three fields after it.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peaks {
    /// While `F` runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward: Option<f64>,
    /// While `I` runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<f64>,
    /// While `W` runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    /// While `B` runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backward: Option<f64>,
}

impl Peaks {
    fn all(&self) -> [Option<f64>; 4] {
        [self.forward, self.input, self.weight, self.backward]
    }

    fn scaled(self, factor: f64) -> Self {
        let [forward, input, weight, backward] = self.all().map(|peak| peak.map(|bytes| bytes * factor));
        Self { forward, input, weight, backward }
    }
}

/// The costs of one layer. Seconds, FLOPs and activation bytes are for one microbatch.
///
/// ```
/// use burn_pipeline_plan::cost::{Dtype, Layer};
/// let layer = Layer::new('A').with_parameters(1_000, Dtype::Bf16).with_flops(2e9).estimated(1e12);
/// assert_eq!((layer.parameters, layer.parameter_bytes()), (1_000, 2_000));
/// assert_eq!(layer.seconds(), 0.006);
/// ```
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// The kind: one ASCII letter, chosen by the model's author. Case matters.
    pub kind: char,
    /// The number of parameters.
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
    /// Seconds of the whole backward. If absent: `input + weight`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backward: Option<f64>,
    /// Seconds of its forward fused with a whole backward. If absent, the two run one after the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap: Option<f64>,
    /// Bytes of activations that the forward saves for the backward.
    #[serde(default)]
    pub activation_bytes: f64,
    /// The part of `activation_bytes + recomputed_bytes` that the backward for the input frees. Negative if it
    /// saves more for the weights' backward than it frees.
    #[serde(default)]
    pub freed_at_input_bytes: f64,
    /// Bytes of activations that the layer recomputes: held while the forward runs, and in the backward.
    #[serde(default, skip_serializing_if = "is_default")]
    pub recomputed_bytes: f64,
    /// The peak bytes of a stage that is this layer alone, where they are known.
    #[serde(default, skip_serializing_if = "is_default")]
    pub peaks: Peaks,
    /// Bytes of the output. A cut after this layer sends them to the next stage.
    #[serde(default)]
    pub output_bytes: f64,
    /// Bytes of each value that the layer passes beyond the next one; see
    /// [`Layers::with_skips`](super::Layers::with_skips).
    #[serde(default, skip_serializing_if = "is_default")]
    pub skip_bytes: f64,
    /// Bytes that the members of a tensor-parallel group all-reduce in the layer's forward, and again in its
    /// backward for the input: twice its output for a block with attention and feed-forward. If absent, every
    /// member runs the whole layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summed_bytes: Option<f64>,
}

impl Layer {
    /// A layer of this kind with all costs zero.
    pub fn new(kind: char) -> Self {
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
            peaks: Peaks::default(),
            output_bytes: 0.0,
            skip_bytes: 0.0,
            summed_bytes: None,
        }
    }

    /// The same layer with this many more parameters, of one element type.
    pub fn with_parameters(mut self, parameters: u64, dtype: Dtype) -> Self {
        self.parameters = self.parameters.saturating_add(parameters);
        let bytes = self.bytes.entry(dtype).or_default();
        *bytes = bytes.saturating_add(parameters.saturating_mul(dtype.bytes()));
        self
    }

    /// The same layer with the FLOPs of its forward.
    pub fn with_flops(self, flops: f64) -> Self {
        Self { flops, ..self }
    }

    /// The same layer with the seconds of `F`, `I` and `W`.
    pub fn with_seconds(self, forward: f64, input: f64, weight: f64) -> Self {
        Self { forward, input, weight, ..self }
    }

    /// The same layer with seconds estimated from its FLOPs at `rate` FLOPs per second: `F` and `I` each take the
    /// forward's FLOPs, and so does `W` if the layer has parameters. Measured seconds are dropped.
    pub fn estimated(self, rate: f64) -> Self {
        let seconds = self.flops / rate;
        let weight = if self.parameters > 0 { seconds } else { 0.0 };
        Self { backward: None, overlap: None, ..self }.with_seconds(seconds, seconds, weight)
    }

    /// The layer on one member of a tensor-parallel group of `members` ranks: work, parameters, activations and
    /// messages divided evenly, plus an all-reduce of `summed_bytes` over the group's links in the forward and in
    /// the backward for the input. A layer without `summed_bytes` does not change.
    ///
    /// This models Megatron's tensor and sequence parallelism (Korthikanti et al. 2022, arXiv:2205.05198), whose
    /// reduce-scatter and all-gather move as much as an all-reduce.
    pub fn held_by(&self, members: usize, links: &LinkCosts) -> Self {
        let Some(summed) = self.summed_bytes.filter(|_| members > 1) else { return self.clone() };
        let (part, sum) = (1.0 / members as f64, links.all_reduce_seconds(members, summed));
        Self {
            parameters: self.parameters.div_ceil(members as u64),
            bytes: self.bytes.iter().map(|(&dtype, bytes)| (dtype, bytes.div_ceil(members as u64))).collect(),
            flops: self.flops * part,
            forward: self.forward * part + sum,
            input: self.input * part + sum,
            weight: self.weight * part,
            backward: self.backward.map(|backward| backward * part + sum),
            overlap: self.overlap.map(|overlap| overlap * part + 2.0 * sum),
            output_bytes: self.output_bytes * part,
            skip_bytes: self.skip_bytes * part,
            ..self.with_bytes_held(part)
        }
    }

    /// The same layer with the bytes that it holds for its backward, and its peaks, multiplied by `factor`. Rounding
    /// does not make the freed ones more than those held.
    pub(super) fn with_bytes_held(&self, factor: f64) -> Self {
        let (activation_bytes, recomputed_bytes) = (self.activation_bytes * factor, self.recomputed_bytes * factor);
        let freed_at_input_bytes = (self.freed_at_input_bytes * factor).min(activation_bytes + recomputed_bytes);
        let peaks = self.peaks.scaled(factor);
        Self { activation_bytes, recomputed_bytes, freed_at_input_bytes, peaks, ..self.clone() }
    }

    /// The same layer before the first one that trains: without a backward, and with nothing held for one.
    pub(super) fn frozen(self) -> Self {
        let peaks = Peaks { forward: self.peaks.forward, ..Peaks::default() };
        let bytes = Self { activation_bytes: 0.0, freed_at_input_bytes: 0.0, recomputed_bytes: 0.0, peaks, ..self };
        Self { input: 0.0, weight: 0.0, backward: None, ..bytes }
    }

    /// The same layer as the first one that trains: its backward is that for the weights alone. A layer that recomputes
    /// does it there.
    pub(super) fn first_trained(self) -> Self {
        let again = if self.recomputed_bytes > 0.0 && self.input > 0.0 { self.forward } else { 0.0 };
        let weight = (self.full_backward() - self.input).max(0.0) + again;
        let peaks = Peaks { input: None, weight: self.peaks.backward.or(self.peaks.weight), ..self.peaks };
        Self { input: 0.0, weight, backward: None, freed_at_input_bytes: 0.0, peaks, ..self }
    }

    /// The seconds of the whole backward.
    pub fn full_backward(&self) -> f64 {
        self.backward.unwrap_or(self.input + self.weight)
    }

    /// The seconds of the forward plus the whole backward.
    pub fn seconds(&self) -> f64 {
        self.forward + self.full_backward()
    }

    /// The bytes of the parameters, summed over element types.
    pub fn parameter_bytes(&self) -> u64 {
        self.bytes.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// The first number that must not be negative but is, or is infinite or NaN, as its name and its text.
    pub(super) fn check(&self) -> Option<(&'static str, String)> {
        let backward = self.full_backward();
        let peak = self.peaks.all().into_iter().flatten().find(|peak| !is_amount(*peak));
        let of_backward = || (!is_amount(backward)).then(|| ("backward", backward.to_string()));
        self.fault().or_else(of_backward).or_else(|| peak.map(|peak| ("peaks", peak.to_string())))
    }
}

#[cfg(test)]
mod tests {
    use crate::cost::{Layer, Layers, LinkCosts, StageCost};

    #[test]
    fn rounding_frees_no_more_than_is_held() {
        for (held, again) in (1..200).flat_map(|held| (1..20).map(move |again| (f64::from(held), f64::from(again)))) {
            let layer = Layer {
                activation_bytes: held,
                recomputed_bytes: again,
                freed_at_input_bytes: held + again,
                summed_bytes: Some(1.0),
                ..Layer::new('A')
            };
            let layers = Layers::new(vec![layer]).unwrap();
            for factor in [2.0 / 3.0, 1.0 / 3.0, 0.1] {
                layers.scaled(factor, 0.0).unwrap();
            }
            layers.held_by(3, &LinkCosts::default()).unwrap();
            let (held, kept) = (held * 2.0 / 3.0, again / 3.0);
            let stage = StageCost { activation_bytes: held, freed_at_input_bytes: held, ..StageCost::default() };
            let stage = stage.recomputing(kept);
            assert!(stage.freed_at_input_bytes <= stage.activation_bytes + stage.recomputed_bytes);
        }
    }

    #[test]
    fn estimates_replace_measured_backwards() {
        let measured = Layer { backward: Some(9.0), overlap: Some(9.0), ..Layer::new('A').with_flops(1e9) };
        assert_eq!(measured.estimated(1e9), Layer::new('A').with_flops(1e9).with_seconds(1.0, 1.0, 0.0));
    }
}

amounts!(
    Layer: flops, forward, input, weight, backward, overlap, activation_bytes, recomputed_bytes, output_bytes,
    skip_bytes, summed_bytes
);
