//! Auxiliary losses of a stage's layers: weighted, averaged over the whole model, injected, and reported.
//!
//! Guarantees: if every stage injects the losses of its own layers, the parameters get the gradients of
//!
//! ```text
//! main + sum over kinds of (weight of the kind) * (mean over the layers of the whole model that have it)
//! ```
//!
//! The mean divides by the number of such layers in the model, not in the stage: a stage with one of eight layers
//! contributes an eighth. (With a sum of per-stage means, a layer's weight would depend on the cut.)
//!
//! 1. Each layer's values go into one bucket per kind. [`AuxiliaryLosses::total`] weighs and adds them.
//! 2. [`AuxiliaryLosses::inject`] instead joins the values to the hidden states, without adding them. The gradient of
//!    each is the seed of the microbatch's loss times the weight of its kind, so cutting, accumulation and scaling
//!    treat main and auxiliary losses alike.
//! 3. [`observation_rows`] writes values and counts into one row per layer, without autodiff. The rows travel
//!    downstream with the hidden states. The last stage gives all rows to `Loss::observing`, so every rank gets them;
//!    [`parse_rows`] reads them.
//!
//! With `Reduction::Weighted` the main loss is a sum that is divided by its weight at the end, so the auxiliary losses
//! must be multiplied by the microbatch's weight: pass `seed * weight` to [`AuxiliaryLosses::inject`], with the weight
//! from an extra (a mask, for example). With `Reduction::Sum` nothing is divided, and the auxiliary losses of
//! microbatches add up.

use crate::layers::{BlockKind, LayerAuxiliary};
use crate::ops::{BUCKETS, InjectedWeights, inject_weighted, sums_in};
use burn::config::Config;
use burn::tensor::{DType, Device, FloatDType, Int, Tensor};

/// The weight of each kind of auxiliary loss, relative to the main loss.
#[derive(Config, Debug, Copy, PartialEq)]
pub struct AuxiliaryWeights {
    /// Weight of the load-balancing loss.
    #[config(default = 0.01)]
    pub load_balance: f64,
    /// Weight of the router z-loss.
    #[config(default = 0.001)]
    pub router_z: f64,
    /// Weight of the router loss of a mixture of depths.
    #[config(default = 0.01)]
    pub depth_router: f64,
}

/// The auxiliary losses of a model: their weights, and how many layers of the whole model have each kind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AuxiliaryLosses {
    weights: AuxiliaryWeights,
    with_experts: usize,
    with_depths: usize,
}

impl AuxiliaryLosses {
    /// The losses of a model with these blocks: all blocks of the model, not only the stage's.
    pub fn new(weights: AuxiliaryWeights, blocks: &[BlockKind]) -> Self {
        let count = |has: fn(BlockKind) -> bool| blocks.iter().filter(|&&block| has(block)).count();
        Self { weights, with_experts: count(BlockKind::has_experts), with_depths: count(BlockKind::has_depths) }
    }

    /// The weighted auxiliary loss of these layers, one element; `None` if they have no auxiliary losses.
    pub fn total(&self, layers: &[LayerAuxiliary]) -> Option<Tensor<1>> {
        let of_kind =
            |(values, weight): (Vec<Tensor<1>>, f64)| Some(values.into_iter().reduce(sum)?.mul_scalar(weight));
        let kinds = buckets(layers).into_iter().zip(self.shares());
        kinds.filter_map(of_kind).reduce(sum)
    }

    /// The weight of one layer's value of each kind.
    fn shares(&self) -> InjectedWeights {
        let of = |weight: f64, layers: usize| weight / layers.max(1) as f64;
        [
            of(self.weights.load_balance, self.with_experts),
            of(self.weights.router_z, self.with_experts),
            of(self.weights.depth_router, self.with_depths),
        ]
    }

    /// Joins the layers' values to the hidden states that leave them. In the backward, the values get the same
    /// gradients as in [`AuxiliaryLosses::total`]. `scale` is the loss's seed, one element.
    ///
    /// # Panics
    /// Panics if `scale` does not have one element.
    pub fn inject<const D: usize>(&self, hidden: Tensor<D>, layers: &[LayerAuxiliary], scale: Tensor<1>) -> Tensor<D> {
        inject_weighted(hidden, buckets(layers), self.shares(), scale)
    }
}

/// The sum of two losses, which have different types if only some routers are kept in f32.
fn sum(a: Tensor<1>, b: Tensor<1>) -> Tensor<1> {
    if a.dtype() == b.dtype() {
        return a + b;
    }
    let wide = sums_in(a.dtype(), b.dtype());
    a.cast(wide) + b.cast(wide)
}

/// The layers' values, one bucket per kind.
fn buckets(layers: &[LayerAuxiliary]) -> [Vec<Tensor<1>>; BUCKETS] {
    let of = |value: fn(&LayerAuxiliary) -> &Option<Tensor<1>>| {
        layers.iter().filter_map(|layer| value(layer).clone()).collect()
    };
    [of(|layer| &layer.load_balance), of(|layer| &layer.router_z), of(|layer| &layer.depth_router)]
}

/// The number of columns before the load of each expert.
pub(crate) const COLUMNS: usize = 4;

/// The rows of these layers, `[layers, 4 + experts]`, without gradient, appended to the rows from upstream; `None` if
/// there are no rows.
pub fn observation_rows(
    upstream: Option<Tensor<2>>,
    layers: &[LayerAuxiliary],
    experts: usize,
    device: &Device,
) -> Option<Tensor<2>> {
    let options = (device, DType::F32);
    let zero = |count: usize| Tensor::<1>::zeros([count], options);
    let value = |value: &Option<Tensor<1>>| value.clone().map_or_else(|| zero(1), |v| v.detach().cast(DType::F32));
    let counts = |counts: &Option<Tensor<1, Int>>, width| {
        counts.clone().map_or_else(|| zero(width), |counts| counts.cast(FloatDType::F32))
    };
    let row = |layer: &LayerAuxiliary| {
        let values = [value(&layer.load_balance), value(&layer.router_z), value(&layer.depth_router)];
        let counted = [counts(&layer.dropped, 1), counts(&layer.load, experts)];
        Tensor::cat(values.into_iter().chain(counted).collect(), 0).unsqueeze::<2>()
    };
    let rows: Vec<_> = upstream.map(Tensor::detach).into_iter().chain(layers.iter().map(row)).collect();
    (!rows.is_empty()).then(|| Tensor::cat(rows, 0))
}

/// One layer's auxiliary losses and counts, on the host.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LayerObservation {
    /// Load-balancing loss; 0 without experts.
    pub load_balance: f64,
    /// Router z-loss; 0 without experts.
    pub router_z: f64,
    /// Router loss of a mixture of depths; 0 without.
    pub depth_router: f64,
    /// Choices that were dropped because their expert was full.
    pub dropped: f64,
    /// The number of choices for each expert.
    pub load: Vec<f64>,
}

impl LayerObservation {
    /// The largest load divided by the mean load: 1 if balanced, and 1 if nothing was routed.
    pub fn imbalance(&self) -> f64 {
        let total: f64 = self.load.iter().sum();
        let largest = self.load.iter().copied().fold(0.0, f64::max);
        if total == 0.0 { 1.0 } else { largest * self.load.len() as f64 / total }
    }
}

/// Reads the rows of [`observation_rows`] for one microbatch: one observation per layer of the model, in order.
pub fn parse_rows(numbers: &[f64], experts: usize) -> Vec<LayerObservation> {
    let row = |row: &[f64]| LayerObservation {
        load_balance: row[0],
        router_z: row[1],
        depth_router: row[2],
        dropped: row[3],
        load: row[COLUMNS..].to_vec(),
    };
    numbers.chunks_exact(COLUMNS + experts).map(row).collect()
}

/// One observation per layer over several microbatches: losses are averaged, counts are added.
pub fn combine_microbatches(microbatches: &[&[LayerObservation]]) -> Vec<LayerObservation> {
    let mut layers: Vec<LayerObservation> = Vec::new();
    let share = 1.0 / microbatches.len().max(1) as f64;
    for microbatch in microbatches {
        let none = |one: &LayerObservation| LayerObservation { load: vec![0.0; one.load.len()], ..Default::default() };
        layers.extend(microbatch.iter().skip(layers.len()).map(none));
        for (sum, one) in layers.iter_mut().zip(*microbatch) {
            sum.load_balance += one.load_balance * share;
            sum.router_z += one.router_z * share;
            sum.depth_router += one.depth_router * share;
            sum.dropped += one.dropped;
            sum.load.iter_mut().zip(&one.load).for_each(|(sum, one)| *sum += one);
        }
    }
    layers
}
