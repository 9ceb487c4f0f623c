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
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
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
