//! Transformer blocks, dense or with experts, and the pattern string that mixes them.
//!
//! 1. [`parse_pattern`] reads one letter per block.
//! 2. [`BlockConfig::init`] makes a block of any kind from the configuration that all blocks share.
//! 3. [`Block`] is a [`TransformerBlock`] that all tokens take, or a [`MixtureOfDepths`] around one.

use super::attention::AttentionConfig;
use super::context::AttentionContext;
use super::depths::{MixtureOfDepths, depth_tokens};
use super::feed_forward::FeedForwardConfig;
use super::layer_auxiliary::LayerAuxiliary;
use super::mixture::MixtureOfExpertsConfig;
use super::transformer::{FeedForwardOrExperts, TransformerBlock};
use crate::cache::{CacheError, LayerCache};
#[cfg(doc)]
use crate::router::Capacity;
use burn::config::Config;
use burn::module::Module;
use burn::nn::LayerNormConfig;
use burn::tensor::{Device, Tensor};
use burn_pipeline::tensor_parallel::TensorGroup;

/// The kind of a block, one letter of a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockKind {
    /// `D`: a dense block.
    Dense,
    /// `E`: a block with experts.
    Experts,
    /// `d`: a dense block that some tokens bypass (mixture of depths).
    DenseDepths,
    /// `e`: a block with experts that some tokens bypass (mixture of depths).
    ExpertsDepths,
}

impl BlockKind {
    /// Returns true if the block has experts, and so a load-balancing loss and a z-loss.
    pub fn has_experts(self) -> bool {
        matches!(self, Self::Experts | Self::ExpertsDepths)
    }

    /// Returns true if the block is a mixture of depths.
    pub fn has_depths(self) -> bool {
        matches!(self, Self::DenseDepths | Self::ExpertsDepths)
    }

    /// The block's letter in a pattern.
    pub fn letter(self) -> char {
        match self {
            Self::Dense => 'D',
            Self::Experts => 'E',
            Self::DenseDepths => 'd',
            Self::ExpertsDepths => 'e',
        }
    }
}

/// Why a pattern is refused.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum PatternError {
    /// A letter does not name a kind of block.
    #[error(
        "`{letter}` at position {place} is no kind of block; use D (dense), E (experts), d or e (the same as mixture \
         of depths)"
    )]
    Letter { letter: char, place: usize },
    /// The pattern has no letters.
    #[error("the pattern is empty; give at least one letter")]
    Empty,
}

burn_pipeline::debug_as_text!(PatternError);

/// The blocks of a model, one letter per block; see [`BlockKind`].
///
/// ```
/// use burn_pipeline_moe::layers::{BlockKind, parse_pattern};
///
/// assert_eq!(parse_pattern("DE")?, [BlockKind::Dense, BlockKind::Experts]);
/// assert!(parse_pattern("DX").is_err());
/// # Ok::<(), burn_pipeline_moe::layers::PatternError>(())
/// ```
///
/// # Errors
/// Returns [`PatternError`] if a letter does not name a kind, or the pattern is empty.
pub fn parse_pattern(pattern: &str) -> Result<Vec<BlockKind>, PatternError> {
    let kind = |(place, letter)| match letter {
        'D' => Ok(BlockKind::Dense),
        'E' => Ok(BlockKind::Experts),
        'd' => Ok(BlockKind::DenseDepths),
        'e' => Ok(BlockKind::ExpertsDepths),
        letter => Err(PatternError::Letter { letter, place }),
    };
    let kinds = pattern.chars().enumerate().map(kind).collect::<Result<Vec<_>, _>>()?;
    if kinds.is_empty() { Err(PatternError::Empty) } else { Ok(kinds) }
}

/// The configuration shared by all blocks of a model.
#[derive(Config, Debug)]
pub struct BlockConfig {
    /// The attention layer.
    pub attention: AttentionConfig,
    /// Width inside a dense feed-forward layer.
    pub d_dense: usize,
    /// The experts of the blocks with experts.
    pub mixture: MixtureOfExpertsConfig,
    /// The share of tokens that take a mixture-of-depths block.
    #[config(default = 0.5)]
    pub depth_capacity: f64,
}

impl BlockConfig {
    /// Initializes a block.
    ///
    /// # Panics
    /// Same as [`AttentionConfig::init`] and [`MixtureOfExpertsConfig::init`].
    pub fn init(&self, kind: BlockKind, device: &Device) -> Block {
        let d = self.attention.d_model;
        let mix = if kind.has_experts() {
            FeedForwardOrExperts::Experts(self.mixture.init(device))
        } else {
            FeedForwardOrExperts::Dense(FeedForwardConfig::new(d, self.d_dense).init(device))
        };
        let inner = TransformerBlock {
            norm_attention: LayerNormConfig::new(d).init(device),
            attention: self.attention.init(device),
            norm_mix: LayerNormConfig::new(d).init(device),
            mix,
        };
        match kind.has_depths() {
            true => Block::Some(MixtureOfDepths::new(inner, d, self.depth_capacity, device)),
            false => Block::All(inner),
        }
    }

    /// The number of the `seq` tokens that take a mixture-of-depths block; at least one.
    pub(crate) fn depth_tokens(&self, seq: usize) -> usize {
        depth_tokens(self.depth_capacity, seq)
    }
}

/// A block that all tokens take, or only some.
#[derive(Module, Debug)]
pub enum Block {
    /// All tokens take it.
    All(TransformerBlock),
    /// Some tokens take it; the others bypass it.
    Some(MixtureOfDepths),
}

impl Block {
    /// Makes the block tensor parallel over a group ([`StageContext::group`](burn_pipeline::StageContext)): its
    /// feed-forward layer or experts are cut over the members; attention, norms and routers are whole on each and
    /// computed alike.
    ///
    /// # Panics
    /// Panics if experts or hidden features cannot be cut evenly over the group.
    pub fn cut(self, group: &TensorGroup) -> Self {
        self.map(|inner| inner.cut(group))
    }

    /// Makes the block expert parallel over the data-parallel replicas of its stage
    /// ([`StageContext::replicas`](burn_pipeline::StageContext)): each replica holds its share of the experts, and
    /// tokens go to the replica that has their expert. Everything else is whole on each. To combine both, call
    /// [`Block::cut`] first.
    ///
    /// # Panics
    /// Panics if experts cannot be cut evenly over the replicas.
    pub fn expert_parallel(self, replicas: &TensorGroup) -> Self {
        self.map(|inner| inner.expert_parallel(replicas))
    }

    /// Runs the block on `[batch, seq, d_model]`.
    pub fn forward(&self, x: Tensor<3>, context: &AttentionContext) -> (Tensor<3>, LayerAuxiliary) {
        match self {
            Block::All(inner) => inner.forward(x, context),
            Block::Some(depths) => depths.forward(x, context),
        }
    }

    /// Runs the block on the tokens `[batch, seq, d_model]` that follow the cached ones, and adds them to the cache.
    /// The context is that of the new tokens ([`AttentionContext::starting_at`]). For evaluation; see
    /// [`cache`](crate::cache).
    ///
    /// # Errors
    /// Same as [`LayerCache::extend`]. Also fails if the block's tokens cannot run one by one.
    pub fn forward_cached(
        &self,
        x: Tensor<3>,
        context: &AttentionContext,
        cache: &mut LayerCache,
    ) -> Result<(Tensor<3>, LayerAuxiliary), CacheError> {
        match self {
            Block::All(inner) => inner.forward_cached(x, context, cache),
            Block::Some(_) => Err(CacheError::Depths),
        }
    }

    /// Moves the router's bias by `rate` after a step with this load (the number of choices for each expert); see
    /// [`balance`](crate::balance). A block without experts or without a bias is returned unchanged.
    pub fn with_updated_bias(self, load: &[f64], rate: f64) -> Self {
        self.map(|inner| inner.with_updated_bias(load, rate))
    }

    fn map(self, change: impl FnOnce(TransformerBlock) -> TransformerBlock) -> Self {
        match self {
            Block::All(inner) => Block::All(change(inner)),
            Block::Some(depths) => Block::Some(depths.map(change)),
        }
    }

    /// The reason why the block cannot be captured, if any; see [`Capacity::skip_capture`].
    pub fn skip_capture(&self) -> Option<&'static str> {
        let (Block::All(TransformerBlock { mix, .. })
        | Block::Some(MixtureOfDepths { inner: TransformerBlock { mix, .. }, .. })) = self;
        match mix {
            FeedForwardOrExperts::Dense(_) => None,
            FeedForwardOrExperts::Experts(mixture) => mixture.skip_capture(),
        }
    }
}
