//! Keys and values of the tokens that attention has seen, kept from one evaluation to the next: to generate text, a pipeline runs
//! each token once.
//!
//! Guarantees: a stage computes what it would over the whole sequence so far, up to the rounding of products of other
//! shapes; a token that does not come right after those that are kept is refused. Nothing is kept while a model trains.
//!
//! 1. The caller numbers its sequences, one a microbatch, and gives each as an extra its number and the position of its first
//!    new token ([`CachePlace`]; [`Batch::from_microbatches`](burn_pipeline::Batch::from_microbatches)).
//! 2. A stage holds a [`KeyValueCache`], which hands a [`LayerCache`] for each of its layers to its forward. Position 0 begins
//!    a sequence anew.
//! 3. [`Block::forward_cached`](crate::layers::Block::forward_cached), or a layer of one's own with [`LayerCache::extend`],
//!    computes new queries against all keys so far.
//!
//! Experts with a capacity and mixtures of depths let tokens compete with those they run beside, so their tokens cannot run one
//! by one: they are refused. Begin anew where weights have changed, and where a sliding window moves positions.
//!
//! # A model of one's own
//!
//! One pipeline trains, and writes with a cache: the place is an `Option`, which is `None` where nothing is to be kept. Keys of few heads
//! (grouped queries) are kept before they are repeated, and rotated ones after their rotation by [`CachePlace::start`].
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
//!             _ => panic!("tokens go into the first stage"),
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
//!             let Signal::Hidden(scores) = scores else { panic!("scores come out of the last stage") };
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
//! // Every batch has the extra, those that train too.
//! let x = Tensor::<1, Int>::arange(0..16, &device).reshape([2, 8]);
//! pipeline.step(Batch::new(Signal::Tokens(x.clone())).extra("place", None::<CachePlace>).target(x), 1e-2)?;
//!
//! // Two texts of one length, a microbatch each. The first call runs all of what was given, the others one token of each text.
//! let mut texts = vec![vec![1, 2, 3], vec![7, 5, 6]];
//! let mut start = 0;
//! for _ in 0..4 {
//!     let new = |(slot, text): (usize, &Vec<i64>)| {
//!         Batch::new(Signal::Tokens(tokens(&text[start..]))).extra("place", Some(CachePlace { slot, start }))
//!     };
//!     let batch = Batch::from_microbatches(texts.iter().enumerate().map(new).collect());
//!     let length = texts[0].len();
//!     let Signal::Hidden(scores) = pipeline.eval(batch)?.output()? else { panic!("scores come out of the last stage") };
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
//!     let Signal::Hidden(scores) = pipeline.eval(batch)?.output()? else { panic!("scores come out of the last stage") };
//!     let last = scores.slice([0..1, text.len() - 1..text.len()]).argmax(2);
//!     text.extend(last.into_data().iter::<i64>());
//! }
//! assert_eq!(text, texts[1]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use burn::tensor::{Int, Tensor};
use burn_pipeline::boundary;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Which sequences a microbatch goes on with, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachePlace {
    /// The number of the microbatch's sequences, which have one cache together.
    pub slot: usize,
    /// The position of the first token of the microbatch, from 0.
    pub start: usize,
}

boundary!(
    struct CachePlace {
        slot,
        start,
    }
);

/// Why a cache cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum CacheError {
    /// The tokens do not come right after those that are kept.
    #[error(
        "slot {slot} keeps {held} tokens of a sequence, and tokens from position {start} came; give the token after the last one, or begin anew at 0"
    )]
    Place { slot: usize, start: usize, held: usize },
    /// The microbatch has another number of sequences.
    #[error("a cache of {held} sequence(s) got {got}; begin anew at position 0, or use another slot")]
    Rows { held: usize, got: usize },
    /// The forward is tracked.
    #[error(
        "keys and values of a forward that is trained cannot be kept; evaluate the stage, or run it without a cache"
    )]
    Tracked,
    /// Experts with a capacity.
    #[error(
        "experts with a capacity drop tokens by those that they run beside, so that tokens cannot run one by one; choose `Capacity::Dropless`"
    )]
    Capacity,
    /// A mixture of depths.
    #[error("a mixture of depths chooses among all tokens of a sequence, so that they cannot run one by one")]
    Depths,
}

burn_pipeline::debug_as_text!(CacheError);

/// What one attention layer keeps of a microbatch's sequences.
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

    /// Keeps the keys and values of new tokens, `[batch, heads, seq, width]` each, and returns those of all so far.
    ///
    /// # Errors
    /// If they are tracked by autodiff, or of another number of sequences.
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

    /// Keeps the documents of new tokens, `[batch, seq]`, and returns those of all so far.
    pub(crate) fn extend_documents(&mut self, new: Tensor<2, Int>) -> Tensor<2, Int> {
        let all = match self.documents.take() {
            None => new,
            Some(held) => Tensor::cat(vec![held, new], 1),
        };
        self.documents.insert(all).clone()
    }
}

/// What a stage keeps of all sequences, behind an `Arc`: copies of its module share it. A module holds it as a field that is
/// skipped (`#[module(skip)]`).
#[derive(Debug, Clone, Default)]
pub struct KeyValueCache(Arc<Mutex<HashMap<usize, Vec<LayerCache>>>>);

impl KeyValueCache {
    /// Nothing is kept yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs a stage's layers with what is kept of a microbatch's sequences, one cache a layer, and keeps what `run` leaves there.
    ///
    /// # Errors
    /// If the place does not follow what is kept; or what `run` says, after which the sequences have to begin anew.
    pub fn run<T>(
        &self,
        place: CachePlace,
        layers: usize,
        run: impl FnOnce(&mut [LayerCache]) -> Result<T, CacheError>,
    ) -> Result<T, CacheError> {
        let CachePlace { slot, start } = place;
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&slot);
        let mut caches = held.filter(|_| start > 0).unwrap_or_default();
        caches.resize(layers, LayerCache::default());
        if let Some(held) = caches.iter().map(LayerCache::tokens).find(|&held| held != start) {
            return Err(CacheError::Place { slot, start, held });
        }
        let output = run(&mut caches)?;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(slot, caches);
        Ok(output)
    }
}
