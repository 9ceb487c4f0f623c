//! Transformer blocks, dense or with experts, and the pattern string that mixes them.

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
use burn_pipeline::tensor_group::TensorGroup;

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
    /// Does the block have experts, and so a load-balancing loss and a z-loss?
    pub fn has_experts(self) -> bool {
        matches!(self, Self::Experts | Self::ExpertsDepths)
    }

    /// Is the block a mixture of depths?
    pub fn has_depths(self) -> bool {
        matches!(self, Self::DenseDepths | Self::ExpertsDepths)
    }

    /// Its letter in a pattern.
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
    /// A letter that names no kind of block.
    #[error(
        "`{letter}` at position {place} is no block; use D (dense), E (experts), d or e (the same as mixture of depths)"
    )]
    Letter { letter: char, place: usize },
    /// No letter.
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
/// If a letter names no kind, or the pattern is empty.
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

/// The configuration that all blocks of a model share.
#[derive(Config, Debug)]
pub struct BlockConfig {
    /// The attention layer.
    pub attention: AttentionConfig,
    /// Width inside a dense feed-forward layer.
    pub d_dense: usize,
    /// The experts of blocks that have them.
    pub mixture: MixtureOfExpertsConfig,
    /// The share of tokens that take a mixture-of-depths block.
    #[config(default = 0.5)]
    pub depth_capacity: f64,
}

impl BlockConfig {
    /// Initializes a block.
    ///
    /// # Panics
    /// As [`AttentionConfig::init`] and [`MixtureOfExpertsConfig::init`].
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
}

impl BlockConfig {
    /// How many of `seq` tokens take a mixture-of-depths block; at least one.
    pub(crate) fn depth_tokens(&self, seq: usize) -> usize {
        depth_tokens(self.depth_capacity, seq)
    }
}

/// A block that all tokens take, or only some.
#[derive(Module, Debug)]
pub enum Block {
    /// All tokens take it.
    All(TransformerBlock),
    /// Some tokens take it, and the others bypass it.
    Some(MixtureOfDepths),
}

impl Block {
    /// The same block held by the ranks of a group ([`StageContext::group`](burn_pipeline::StageContext)): its feed-forward layer or experts are
    /// spread over them, and attention, norms and routers are whole on each, which compute them alike.
    ///
    /// # Panics
    /// If experts or hidden features cannot be cut evenly over the group.
    pub fn cut(self, group: &TensorGroup) -> Self {
        match self {
            Block::All(inner) => Block::All(inner.cut(group)),
            Block::Some(depths) => Block::Some(depths.cut(group)),
        }
    }

    /// The same block with its experts spread over the data-parallel replicas of its stage
    /// ([`StageContext::replicas`](burn_pipeline::StageContext)): each holds its share of them, and tokens go to the replica that has their expert. All
    /// else is whole on each. Cut the block over its group first, if it is to be cut.
    ///
    /// # Panics
    /// If experts cannot be cut evenly over the replicas.
    pub fn spread(self, replicas: &TensorGroup) -> Self {
        match self {
            Block::All(inner) => Block::All(inner.spread(replicas)),
            Block::Some(depths) => Block::Some(depths.spread(replicas)),
        }
    }

    /// Runs the block on `[batch, seq, d_model]`.
    pub fn forward(&self, x: Tensor<3>, context: &AttentionContext) -> (Tensor<3>, LayerAuxiliary) {
        match self {
            Block::All(inner) => inner.forward(x, context),
            Block::Some(depths) => depths.forward(x, context),
        }
    }

    /// Runs the block on the tokens `[batch, seq, d_model]` that come after those in the cache, and adds them there; the context
    /// is that of the new tokens ([`AttentionContext::starting_at`]). For evaluation; see [`cache`](crate::cache).
    ///
    /// # Errors
    /// As [`LayerCache::extend`]; if the block's tokens cannot run one by one.
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

    /// The same block after a step with this load (the number of choices for each expert), its router's bias moved by `rate`;
    /// see [`balance`](crate::balance). A block without experts or without a bias is returned unchanged.
    pub fn with_updated_bias(self, load: &[f64], rate: f64) -> Self {
        match self {
            Block::All(inner) => Block::All(inner.with_updated_bias(load, rate)),
            Block::Some(depths) => Block::Some(depths.with_updated_bias(load, rate)),
        }
    }

    /// Why the block cannot be captured, if so; see [`Capacity::skip_capture`].
    pub fn skip_capture(&self) -> Option<&'static str> {
        let (Block::All(TransformerBlock { mix, .. })
        | Block::Some(MixtureOfDepths { inner: TransformerBlock { mix, .. }, .. })) = self;
        match mix {
            FeedForwardOrExperts::Dense(_) => None,
            FeedForwardOrExperts::Experts(mixture) => mixture.skip_capture(),
        }
    }
}
