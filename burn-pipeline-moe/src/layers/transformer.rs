//! The pre-norm transformer block: `x + attention(norm(x))`, then `x + mix(norm(x))`, where `mix` is a feed-forward
//! layer or experts.

use super::attention::Attention;
use super::context::AttentionContext;
use super::feed_forward::FeedForward;
use super::layer_auxiliary::LayerAuxiliary;
use super::mixture::MixtureOfExperts;
use crate::cache::{CacheError, LayerCache};
use burn::module::Module;
use burn::nn::LayerNorm;
use burn::tensor::Tensor;
use burn_pipeline::tensor_parallel::TensorGroup;

/// The second half of a block: one feed-forward layer, or experts.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "a model has few blocks, and modules are not boxed in Burn")]
pub enum FeedForwardOrExperts {
    /// One feed-forward layer.
    Dense(FeedForward),
    /// Experts.
    Experts(MixtureOfExperts),
}

/// A pre-norm transformer block.
#[derive(Module, Debug)]
pub struct TransformerBlock {
    pub(super) norm_attention: LayerNorm,
    pub(super) attention: Attention,
    pub(super) norm_mix: LayerNorm,
    /// The second half.
    pub mix: FeedForwardOrExperts,
}

impl TransformerBlock {
    /// Same as [`Block::cut`](super::Block::cut).
    pub fn cut(self, group: &TensorGroup) -> Self {
        let mix = match self.mix {
            FeedForwardOrExperts::Dense(dense) => FeedForwardOrExperts::Dense(dense.cut(group)),
            FeedForwardOrExperts::Experts(mixture) => FeedForwardOrExperts::Experts(mixture.cut(group)),
        };
        Self { mix, ..self }
    }

    /// Same as [`Block::expert_parallel`](super::Block::expert_parallel).
    pub fn expert_parallel(self, replicas: &TensorGroup) -> Self {
        self.with_experts(|mixture| mixture.expert_parallel(replicas))
    }

    /// Same as [`Block::forward`](super::Block::forward).
    pub fn forward(&self, x: Tensor<3>, context: &AttentionContext) -> (Tensor<3>, LayerAuxiliary) {
        let attended = self.attention.forward(normed(&self.norm_attention, x.clone()), context);
        self.mixed(x + attended)
    }

    /// Same as [`Block::forward_cached`](super::Block::forward_cached).
    pub fn forward_cached(
        &self,
        x: Tensor<3>,
        context: &AttentionContext,
        cache: &mut LayerCache,
    ) -> Result<(Tensor<3>, LayerAuxiliary), CacheError> {
        if let FeedForwardOrExperts::Experts(mixture) = &self.mix
            && !mixture.runs_tokens_alone()
        {
            return Err(CacheError::Capacity);
        }
        let attended = self.attention.forward_cached(normed(&self.norm_attention, x.clone()), context, cache)?;
        Ok(self.mixed(x + attended))
    }

    /// Runs the second half.
    fn mixed(&self, x: Tensor<3>) -> (Tensor<3>, LayerAuxiliary) {
        let normed = normed(&self.norm_mix, x.clone());
        let (y, auxiliary) = match &self.mix {
            FeedForwardOrExperts::Dense(dense) => (dense.forward(normed), LayerAuxiliary::default()),
            FeedForwardOrExperts::Experts(mixture) => mixture.forward(normed),
        };
        (x + y, auxiliary)
    }

    /// Same as [`Block::with_updated_bias`](super::Block::with_updated_bias).
    pub fn with_updated_bias(self, load: &[f64], rate: f64) -> Self {
        self.with_experts(|mixture| mixture.with_updated_bias(load, rate))
    }

    /// Changes the experts; a dense block stays the same.
    fn with_experts(self, change: impl FnOnce(MixtureOfExperts) -> MixtureOfExperts) -> Self {
        match self.mix {
            FeedForwardOrExperts::Dense(_) => self,
            FeedForwardOrExperts::Experts(mixture) => {
                Self { mix: FeedForwardOrExperts::Experts(change(mixture)), ..self }
            }
        }
    }
}

/// The norm of hidden states, in their type. It is computed in the type of its own parameters, which may be f32 beside
/// half-precision hidden states.
pub(super) fn normed(norm: &LayerNorm, x: Tensor<3>) -> Tensor<3> {
    let own = x.dtype();
    norm.forward(x.cast(norm.gamma.dtype())).cast(own)
}
