//! Layers joined to a model.

use super::chain::{Chain, Start, Then};
use super::layer::{Layer, RunHeld};
use super::model::Model;
use super::part::LossOf;
use super::wiring::Described;
use crate::payload::Boundary;
use crate::stage::Loss;
use burn::module::Module;
use std::marker::PhantomData;
use std::sync::Arc;

/// A list of layers, in which the output type of each is the input type of the next one.
///
/// The crate's [first page](crate) has an example. A layer that does not take what the one before gives is a compile
/// error:
///
/// ```compile_fail,E0308
/// use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
/// use burn_pipeline::{Layer, Sequential};
///
/// Sequential::new()
///     .then(Layer::new("embed", |at| EmbeddingConfig::new(32, 16).init(&at.device), Embedding::forward))
///     .then(Layer::new("head", |at| LinearConfig::new(16, 32).init(&at.device), Linear::forward::<2>));
/// ```
#[derive(Debug)]
pub struct Sequential<C> {
    chain: C,
    layers: Vec<Described>,
    /// The names of its entries, each with its repetitions.
    entries: Vec<(String, Option<usize>)>,
    seed: u64,
}

impl<I: Boundary> Sequential<Start<I>> {
    /// A list without layers.
    #[allow(clippy::new_without_default, reason = "nothing else says what the first layer takes")]
    pub fn new() -> Self {
        Self { chain: Start(PhantomData), layers: Vec::new(), entries: Vec::new(), seed: 0 }
    }
}

impl<C: Chain> Sequential<C> {
    /// Adds a layer, which takes what the last one gives.
    pub fn then<M: Module + Sync + 'static, O: Boundary>(
        self,
        layer: Layer<M, C::Output, O>,
    ) -> Sequential<Then<C, M, O>> {
        self.with(None, layer, Layer::run_one)
    }

    /// Adds a layer this many times. Each is made for its own position, has its own parameters, and takes what the one
    /// before gives.
    pub fn repeat<M: Module + Sync + 'static>(
        self,
        times: usize,
        layer: Layer<M, C::Output, C::Output>,
    ) -> Sequential<Then<C, M, C::Output>> {
        self.with(Some(times), layer, Layer::run_each)
    }

    /// Sets the seed of the initial values; 0 by default. A layer's own seed is this times 1,000,003 plus its index
    /// ([`init_seeded`](crate::init_seeded)).
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// The model whose loss is this function of the last layer's output and the batch's target: a `Tensor<1>` of one
    /// element, or a [`Loss`] with a weight.
    pub fn loss<T: Boundary, L: Into<Loss>>(self, loss: impl Fn(C::Output, T) -> L + Send + Sync + 'static) -> Model {
        Model::new(self.chain, self.layers, self.entries, self.seed, Some(LossOf::new(loss)))
    }

    /// The model without a loss, for evaluation, or for a head of [`Builder::vocabulary`](crate::Builder::vocabulary).
    pub fn without_loss(self) -> Model {
        Model::new(self.chain, self.layers, self.entries, self.seed, None)
    }

    fn with<M, O: Boundary>(
        mut self,
        times: Option<usize>,
        layer: Layer<M, C::Output, O>,
        run: RunHeld<M, C::Output, O>,
    ) -> Sequential<Then<C, M, O>> {
        let described = |position: usize| Described {
            name: times.map_or_else(|| layer.name.clone(), |_| format!("{}.{position}", layer.name)),
            ports: layer.ports.clone(),
            kinds: [C::Output::kinds, O::kinds],
            recomputed: layer.recomputed,
        };
        self.layers.extend((0..times.unwrap_or(1)).map(described));
        self.entries.push((layer.name.clone(), times));
        let chain = Then { before: self.chain, layer: Arc::new(layer), run, times };
        Sequential { chain, layers: self.layers, entries: self.entries, seed: self.seed }
    }
}
