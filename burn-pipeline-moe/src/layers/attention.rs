//! Causal self-attention within documents.
//!
//! 1. One matmul gives queries, keys and values; queries and keys may be rotated by their positions.
//! 2. A bias is added to the scores, in their type, if there is one. Scores of other documents, of later tokens and of
//!    tokens before the window are masked.
//! 3. With a cache, new queries attend to all keys so far.

use super::context::AttentionContext;
use super::initial::SMALL;
use super::rotary::rotated;
use crate::cache::{CacheError, LayerCache};
use burn::config::Config;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::softmax;
use burn::tensor::{Bool, Device, Int, Tensor};
use burn_pipeline::ops::DeferredForward;

/// The configuration of an attention layer.
#[derive(Config, Debug)]
pub struct AttentionConfig {
    /// Width of the hidden state.
    pub d_model: usize,
    /// Number of heads; divides the width.
    pub heads: usize,
    /// How many tokens back a token attends to, itself included; all if `None`.
    pub window: Option<usize>,
    /// Rotate queries and keys by their positions (rotary embedding). The width of a head must then be even.
    #[config(default = false)]
    pub rotary: bool,
}

impl AttentionConfig {
    /// Initializes the layer.
    ///
    /// # Panics
    /// Panics if the heads do not divide the width, if rotary embedding is on and the heads have an odd width, or if
    /// the window is 0.
    pub fn init(&self, device: &Device) -> Attention {
        let divides = self.heads > 0 && self.d_model.is_multiple_of(self.heads);
        assert!(divides, "{} heads do not divide a width of {}", self.heads, self.d_model);
        assert!(self.window != Some(0), "a window of 0 leaves a token nothing to attend to; the token itself counts");
        let width = self.d_model / self.heads;
        assert!(!self.rotary || width.is_multiple_of(2), "heads of the odd width {width} cannot be rotated in pairs");
        let linear = |to| LinearConfig::new(self.d_model, to).with_initializer(SMALL).init(device);
        let (heads, window, rotary) = (self.heads, self.window, self.rotary);
        Attention { query_key_value: linear(3 * self.d_model), project: linear(self.d_model), heads, window, rotary }
    }
}

/// Causal self-attention: a token attends to itself and to earlier tokens of its own document, within the window.
#[derive(Module, Debug)]
pub struct Attention {
    query_key_value: Linear,
    project: Linear,
    heads: usize,
    window: Option<usize>,
    rotary: bool,
}

impl Attention {
    /// Runs the layer on `[batch, seq, d_model]`.
    pub fn forward(&self, x: Tensor<3>, context: &AttentionContext) -> Tensor<3> {
        let [query, key, value] = self.parts(x, context);
        self.attend(query, key, value, context.documents.clone(), context)
    }

    /// Runs the layer on the tokens `[batch, seq, d_model]` that follow the cached ones, and adds them to the cache.
    /// The context is that of the new tokens; a bias is `[batch, heads, seq, cached + seq]`.
    ///
    /// # Errors
    /// Same as [`LayerCache::extend`].
    pub fn forward_cached(
        &self,
        x: Tensor<3>,
        context: &AttentionContext,
        cache: &mut LayerCache,
    ) -> Result<Tensor<3>, CacheError> {
        let [query, key, value] = self.parts(x, context);
        let (key, value) = cache.extend(key, value)?;
        let documents = cache.extend_documents(context.documents.clone());
        Ok(self.attend(query, key, value, documents, context))
    }

    /// The queries, keys and values, `[batch, heads, seq, width]` each.
    fn parts(&self, x: Tensor<3>, context: &AttentionContext) -> [Tensor<4>; 3] {
        let [batch, seq, d] = x.dims();
        let (width, heads) = (d / self.heads, self.heads);
        let joint = self.query_key_value.forward_deferred(x);
        let part = |i: usize| joint.clone().narrow(2, i * d, d).reshape([batch, seq, heads, width]).swap_dims(1, 2);
        let turned = |x: Tensor<4>| if self.rotary { rotated(x, &context.positions) } else { x };
        [turned(part(0)), turned(part(1)), part(2)]
    }

    /// The layer's output for the queries; `documents` are those of the keys.
    fn attend(
        &self,
        query: Tensor<4>,
        key: Tensor<4>,
        value: Tensor<4>,
        documents: Tensor<2, Int>,
        context: &AttentionContext,
    ) -> Tensor<3> {
        let ([batch, heads, seq, width], [_, all]) = (query.dims(), documents.dims());
        let hidden = self.hidden(context.documents.clone(), documents);
        let mut scores = query.matmul(key.swap_dims(2, 3)).div_scalar((width as f64).sqrt());
        if let Some(bias) = &context.bias {
            let own = scores.dtype();
            scores = scores + bias.clone().cast(own);
        }
        let scores = scores.mask_fill(hidden.unsqueeze_dim::<4>(1).expand([batch, heads, seq, all]), -1.0e9);
        let mixed = softmax(scores, 3).matmul(value);
        self.project.forward_deferred(mixed.swap_dims(1, 2).reshape([batch, seq, heads * width]))
    }

    /// A mask `[batch, seq, all]` of the last `seq` of all tokens, true where a token does not attend to another one.
    fn hidden(&self, documents: Tensor<2, Int>, of_all: Tensor<2, Int>) -> Tensor<3, Bool> {
        let ([batch, seq], [_, all], device) = (documents.dims(), of_all.dims(), documents.device());
        let (pairs, before) = ([batch, seq, all], (all - seq) as i64);
        let of = documents.unsqueeze_dim::<3>(2).expand(pairs);
        let other = of.not_equal(of_all.unsqueeze_dim::<3>(1).expand(pairs));
        let future = Tensor::<2, Bool>::tril_mask([seq, all], before, &device);
        let hidden = match self.window {
            Some(window) if window < all => {
                // Tokens before the window: below the diagonal at this distance.
                let past = Tensor::<2, Bool>::triu_mask([seq, all], before + 1 - window as i64, &device);
                future.bool_or(past)
            }
            _ => future,
        };
        other.bool_or(hidden.unsqueeze::<3>().expand(pairs))
    }
}
