//! A key-value cache for text generation: attention layers keep the keys and values of earlier tokens between
//! evaluations, so a pipeline runs each token only once.
//!
//! Guarantees: a stage computes the same as over the whole sequence so far, up to rounding differences of matmuls of
//! other shapes. Tokens that do not directly follow the cached ones, or belong to another text, are refused. Nothing is
//! cached while a model trains.
//!
//! 1. The caller numbers the cached groups of sequences, one number per microbatch. Each microbatch gets its number,
//!    the number of its text and the position of its first new token as an extra ([`CachePlace`];
//!    [`Batch::from_microbatches`](burn_pipeline::Batch::from_microbatches)).
//! 2. A stage holds a [`KeyValueCache`], which passes a [`LayerCache`] for each of its layers to its forward. Position
//!    0 starts a new sequence.
//! 3. [`Block::forward_cached`](crate::layers::Block::forward_cached), or your own layer with [`LayerCache::extend`],
//!    computes new queries against all keys so far.
//!
//! Experts with a capacity and mixtures of depths let tokens compete with the other tokens of the call, so tokens
//! cannot run one by one; both are refused. Restart at position 0 after weights change, or when a sliding window moves
//! positions.
//!
//! Data-parallel replicas, and the two routes of a bidirectional schedule, have a cache each. The number of
//! microbatches and their order decide which of them a microbatch goes to, so keep both while texts go on.
//!
//! # Your own model
//!
//! One pipeline trains, and generates with a cache: the place is an `Option`, `None` if nothing is to be cached. With
//! grouped queries, cache the keys before they are repeated; with rotary embedding, cache them after rotation by
//! [`CachePlace::start`].
//!
//! ```
//! use burn::module::Module;
//! use burn::nn::loss::CrossEntropyLossConfig;
//! use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
//! use burn::optim::AdamWConfig;
//! use burn::tensor::{Bool, Device, Int, Tensor, activation::softmax};
//! use burn_pipeline::{Batch, Pipeline, Size, Stage, StageBox, StageContext, boundary};
//! use burn_pipeline_moe::cache::{CachePlace, KeyValueCache, LayerCache};
//!
//! const TOKENS: usize = 16;
//!
//! #[derive(Module, Debug)]
//! struct Attention {
//!     query: Linear,
//!     key: Linear,
//!     value: Linear,
//! }
//!
//! impl Attention {
//!     /// `start` tokens came before `x`; the cache has their keys and values.
//!     fn forward(&self, x: Tensor<3>, start: usize, cache: Option<&mut LayerCache>) -> Tensor<3> {
//!         let one_head = |x: Tensor<3>| x.unsqueeze_dim::<4>(1);
//!         let query = one_head(self.query.forward(x.clone()));
//!         let (mut key, mut value) = (one_head(self.key.forward(x.clone())), one_head(self.value.forward(x.clone())));
//!         if let Some(cache) = cache {
//!             (key, value) = cache.extend(key, value).unwrap_or_else(|error| panic!("{error}"));
//!         }
//!         let (new, all) = (query.dims()[2], key.dims()[2]);
//!         let later = Tensor::<2, Bool>::tril_mask([new, all], start as i64, &x.device());
//!         let scores = query.matmul(key.transpose()).mask_fill(later.unsqueeze::<4>(), f32::NEG_INFINITY);
//!         x + softmax(scores, 3).matmul(value).squeeze_dim::<3>(1)
//!     }
//! }
//!
//! #[derive(Module, Debug)]
//! struct Part {
//!     embed: Option<Embedding>,
//!     layers: Vec<Attention>,
//!     head: Option<Linear>,
//!     #[module(skip)]
//!     cache: KeyValueCache,
//! }
//!
//! impl Part {
//!     fn run(&self, input: Signal, start: usize, mut caches: Option<&mut [LayerCache]>) -> Signal {
//!         let mut x = match (input, &self.embed) {
//!             (Signal::Tokens(tokens), Some(embed)) => embed.forward(tokens),
//!             (Signal::Hidden(x), None) => x,
//!             _ => panic!("only the first stage takes tokens"),
//!         };
//!         for (i, layer) in self.layers.iter().enumerate() {
//!             x = layer.forward(x, start, caches.as_mut().map(|caches| &mut caches[i]));
//!         }
//!         Signal::Hidden(match &self.head {
//!             Some(head) => head.forward(x),
//!             None => x,
//!         })
//!     }
//! }
//!
//! enum Signal {
//!     Tokens(Tensor<2, Int>),
//!     Hidden(Tensor<3>),
//! }
//! boundary!(enum Signal { Tokens(tokens), Hidden(hidden) });
//!
//! impl Stage for Part {
//!     type Input = Signal;
//!     type Extra = Option<CachePlace>;
//!     type Output = Signal;
//!
//!     fn extras(&self) -> Vec<&'static str> {
//!         vec!["place"]
//!     }
//!
//!     fn forward(&self, input: Signal, place: Option<CachePlace>) -> Signal {
//!         let Some(place) = place else { return self.run(input, 0, None) };
//!         let run = |caches: &mut [LayerCache]| Ok(self.run(input, place.start, Some(caches)));
//!         self.cache.run(place, self.layers.len(), run).unwrap_or_else(|error| panic!("{error}"))
//!     }
//! }
//!
//! fn stage(at: &StageContext) -> StageBox {
//!     let linear = |to| LinearConfig::new(8, to).init(&at.device);
//!     let part = Part {
//!         embed: at.is_first().then(|| EmbeddingConfig::new(TOKENS, 8).init(&at.device)),
//!         layers: at.layers(4).map(|_| Attention { query: linear(8), key: linear(8), value: linear(8) }).collect(),
//!         head: at.is_last().then(|| linear(TOKENS)),
//!         cache: KeyValueCache::new(),
//!     };
//!     match at.is_last() {
//!         false => StageBox::new(part),
//!         true => StageBox::with_loss(part, |scores: Signal, wanted: Tensor<2, Int>| {
//!             let Signal::Hidden(scores) = scores else { panic!("the last stage returns scores") };
//!             let rows = wanted.shape().num_elements();
//!             let loss = CrossEntropyLossConfig::new().init(&scores.device());
//!             loss.forward(scores.reshape([rows, TOKENS]), wanted.reshape([rows]))
//!         }),
//!     }
//! }
//!
//! let device = Device::flex();
//! let mut pipeline = Pipeline::builder()
//!     .schedule("1F1B", Size::new(2, 2))
//!     .stages(stage)
//!     .optimizer(|| AdamWConfig::new().init())
//!     .devices(vec![device.clone()])
//!     .build()?;
//! let tokens = |tokens: &[i64]| Tensor::<1, Int>::from_ints(tokens, &device).unsqueeze::<2>();
//!
//! // Every batch has the extra, in training too.
//! let x = Tensor::<1, Int>::arange(0..16, &device).reshape([2, 8]);
//! pipeline.step(Batch::new(Signal::Tokens(x.clone())).extra("place", None::<CachePlace>).target(x), 1e-2)?;
//!
//! // Two texts of equal length, one microbatch each. The first call runs the whole texts, the others a token of each.
//! let mut texts = vec![vec![1, 2, 3], vec![7, 5, 6]];
//! let mut start = 0;
//! for _ in 0..4 {
//!     let new = |(slot, text): (usize, &Vec<i64>)| {
//!         Batch::new(Signal::Tokens(tokens(&text[start..]))).extra("place", Some(CachePlace { slot, text: 0, start }))
//!     };
//!     let batch = Batch::from_microbatches(texts.iter().enumerate().map(new).collect());
//!     let length = texts[0].len();
//!     let Signal::Hidden(scores) = pipeline.eval(batch)?.output()? else { panic!("the last stage returns scores") };
//!     let likeliest = scores.slice([0..2, length - start - 1..length - start]).argmax(2);
//!     texts.iter_mut().zip(likeliest.into_data().iter::<i64>()).for_each(|(text, token)| text.push(token));
//!     start = length;
//! }
//! assert_eq!(texts[1].len(), 3 + 4);
//!
//! // The same without a cache.
//! let mut text = texts[1][..3].to_vec();
//! for _ in 0..4 {
//!     let batch = Batch::new(Signal::Tokens(tokens(&text))).extra("place", None::<CachePlace>);
//!     let Signal::Hidden(scores) = pipeline.eval(batch)?.output()? else { panic!("the last stage returns scores") };
//!     let last = scores.slice([0..1, text.len() - 1..text.len()]).argmax(2);
//!     text.extend(last.into_data().iter::<i64>());
//! }
//! assert_eq!(text, texts[1]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use burn::tensor::{Int, Tensor};
use burn_pipeline::boundary;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// The cache slot and position where a microbatch continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachePlace {
    /// The slot: the number of the cache that the microbatch's sequences share.
    pub slot: usize,
    /// A number that no other text of this slot has, for example how many texts the slot had before.
    pub text: usize,
    /// The position of the first token of the microbatch, from 0.
    pub start: usize,
}

boundary!(
    struct CachePlace {
        slot,
        text,
        start,
    }
);

/// Why a cache cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum CacheError {
    /// The tokens do not directly follow the cached ones.
    #[error(
        "slot {slot} has cached {held} tokens of text {text}, but got tokens from position {start}; continue at the \
         next position, or restart at 0; data-parallel replicas and routes have a cache each, so keep the number of \
         microbatches and their order while a text goes on"
    )]
    Place { slot: usize, text: usize, start: usize, held: usize },
    /// The microbatch has a different number of sequences.
    #[error("a cache of {held} sequence(s) got {got}; restart at position 0, or use another slot")]
    Rows { held: usize, got: usize },
    /// The forward is tracked by autodiff.
    #[error("cannot cache keys and values of a forward that is trained; evaluate the stage, or run it without a cache")]
    Tracked,
    /// Experts with a capacity.
    #[error(
        "experts with a capacity drop tokens depending on the other tokens of the call, so tokens cannot run one by \
         one; choose `Capacity::Dropless`"
    )]
    Capacity,
    /// A mixture of depths.
    #[error("a mixture of depths chooses among all tokens of a sequence, so they cannot run one by one")]
    Depths,
}

burn_pipeline::debug_as_text!(CacheError);

/// The cache of one attention layer for a microbatch's sequences.
#[derive(Debug, Clone, Default)]
pub struct LayerCache {
    /// Keys and values, `[batch, heads, seq, width]`.
    held: Option<(Tensor<4>, Tensor<4>)>,
    documents: Option<Tensor<2, Int>>,
}

impl LayerCache {
    /// The number of tokens of each sequence.
    pub fn tokens(&self) -> usize {
        self.held.as_ref().map_or(0, |(key, _)| key.dims()[2])
    }

    /// Appends the keys and values of new tokens, `[batch, heads, seq, width]` each, and returns those of all tokens so
    /// far.
    ///
    /// # Errors
    /// Returns [`CacheError`] if they are tracked by autodiff, or belong to a different number of sequences.
    pub fn extend(&mut self, key: Tensor<4>, value: Tensor<4>) -> Result<(Tensor<4>, Tensor<4>), CacheError> {
        if key.device().is_autodiff() {
            return Err(CacheError::Tracked);
        }
        let all = match self.held.take() {
            None => (key, value),
            Some((keys, values)) => {
                let (held, got) = (keys.dims()[0], key.dims()[0]);
                if held != got {
                    return Err(CacheError::Rows { held, got });
                }
                (Tensor::cat(vec![keys, key], 2), Tensor::cat(vec![values, value], 2))
            }
        };
        self.held = Some(all.clone());
        Ok(all)
    }

    /// Appends the documents of new tokens, `[batch, seq]`, and returns those of all tokens so far.
    pub(crate) fn extend_documents(&mut self, new: Tensor<2, Int>) -> Tensor<2, Int> {
        let all = match self.documents.take() {
            None => new,
            Some(held) => Tensor::cat(vec![held, new], 1),
        };
        self.documents.insert(all).clone()
    }
}

/// The cache of a stage for all sequences, behind an `Arc`: copies of its module share it. Hold it in a module as a
/// skipped field (`#[module(skip)]`).
#[derive(Debug, Clone, Default)]
pub struct KeyValueCache(Arc<Mutex<HashMap<usize, Text>>>);

/// The text of a slot, with a cache per layer.
#[derive(Debug, Clone)]
struct Text {
    number: usize,
    layers: Vec<LayerCache>,
}

impl KeyValueCache {
    /// Creates an empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs a stage's layers with the caches of a microbatch's sequences, one per layer, and keeps what `run` leaves in
    /// them.
    ///
    /// # Errors
    /// Returns [`CacheError`] if the place does not follow the cached tokens, or if `run` fails; after a failed `run`
    /// the sequences must restart at position 0.
    pub fn run<T>(
        &self,
        place: CachePlace,
        layers: usize,
        run: impl FnOnce(&mut [LayerCache]) -> Result<T, CacheError>,
    ) -> Result<T, CacheError> {
        let CachePlace { slot, text, start } = place;
        let held = self.0.lock().remove(&slot);
        let goes_on = held.as_ref().filter(|held| start > 0 && held.number == text);
        let mut caches = goes_on.map(|held| held.layers.clone()).unwrap_or_default();
        caches.resize(layers, LayerCache::default());
        if let Some(tokens) = caches.iter().map(LayerCache::tokens).find(|&tokens| tokens != start) {
            // The sequences may go on where they are.
            if let Some(held) = held {
                self.0.lock().insert(slot, held);
            }
            return Err(CacheError::Place { slot, text, start, held: tokens });
        }
        drop(held);
        let output = run(&mut caches)?;
        self.0.lock().insert(slot, Text { number: text, layers: caches });
        Ok(output)
    }
}
