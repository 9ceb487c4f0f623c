//! Blocks as layers for partitioners and the planner: their parameters and FLOPs.
//!
//! A block holds all of its experts but computes with only a few per token: it has the parameters of many dense blocks
//! and the FLOPs of one or two. Partitioners get both numbers ([`Measure`](burn_pipeline::cost::Measure)), so a model
//! can be cut by memory or by time.
//!
//! 1. Parameters are exactly those of the module that [`BlockConfig::init`] makes.
//! 2. FLOPs are those of the forward's matmuls, two per multiplication: the whole score matrices of attention, and the
//!    experts' matmuls over the tokens' choices, minus those that the capacity is known to drop. Norms, activations and
//!    softmax are not counted.
//! 3. Seconds and activation bytes follow from [`Layer::estimated`], or come from a timed run.

use crate::layers::{BlockConfig, BlockKind};
use crate::router::Capacity;
use burn_pipeline::cost::{Dtype, Layer, PartitionError};

/// The size of a microbatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MicrobatchSize {
    /// Sequences.
    pub batch: usize,
    /// Tokens in a sequence.
    pub seq: usize,
    /// The element type of weights and hidden states.
    pub dtype: Dtype,
}

impl BlockConfig {
    /// The block as a layer of a model. Its kind is the letter of the pattern.
    ///
    /// ```
    /// use burn_pipeline::cost::Dtype;
    /// use burn_pipeline_moe::cost::MicrobatchSize;
    /// use burn_pipeline_moe::layers::{AttentionConfig, BlockConfig, BlockKind, MixtureOfExpertsConfig};
    ///
    /// let config = BlockConfig::new(AttentionConfig::new(64, 4), 128, MixtureOfExpertsConfig::new(64, 64, 8));
    /// let size = MicrobatchSize { batch: 2, seq: 32, dtype: Dtype::F32 };
    /// let (dense, experts) = (config.layer(BlockKind::Dense, size)?, config.layer(BlockKind::Experts, size)?);
    /// assert!(experts.parameters > 2 * dense.parameters && experts.flops < 1.1 * dense.flops);
    /// # Ok::<(), burn_pipeline::cost::PartitionError>(())
    /// ```
    ///
    /// # Errors
    /// Never fails for the kinds of [`BlockKind`], whose letters partitioners accept.
    pub fn layer(&self, kind: BlockKind, size: MicrobatchSize) -> Result<Layer, PartitionError> {
        let values = size.batch * size.seq * self.attention.d_model;
        let layer = Layer::new(kind.letter()).with_parameters(self.parameters(kind), size.dtype);
        let layer = layer.with_flops(self.flops(kind, size.batch, size.seq));
        Ok(Layer { output_bytes: values as f64 * size.dtype.bytes() as f64, ..layer })
    }

    /// The number of parameters of a block.
    pub fn parameters(&self, kind: BlockKind) -> u64 {
        self.parameters_with(kind, self.mixture.experts)
    }

    /// The number of parameters of a block that one token uses; of the experts, only the chosen ones count.
    pub fn active_parameters(&self, kind: BlockKind) -> u64 {
        self.parameters_with(kind, self.mixture.top_k)
    }

    fn parameters_with(&self, kind: BlockKind, experts: usize) -> u64 {
        let (d, mixture) = (self.attention.d_model, &self.mixture);
        let attention = (3 * d * d + 3 * d) + (d * d + d);
        let norms = 4 * d;
        let mix = match kind.has_experts() {
            false => 3 * d * self.d_dense,
            true => {
                let bias = if mixture.expert_bias { mixture.experts } else { 0 };
                d * mixture.experts + bias + 3 * d * mixture.d_hidden * (experts + mixture.shared)
            }
        };
        let router = if kind.has_depths() { d } else { 0 };
        (attention + norms + mix + router) as u64
    }

    /// FLOPs of a block's forward over `batch` sequences of `seq` tokens.
    fn flops(&self, kind: BlockKind, batch: usize, seq: usize) -> f64 {
        let d = self.attention.d_model as f64;
        let (taken, router) = match kind.has_depths() {
            true => (self.depth_tokens(seq), 2.0 * d * (batch * seq) as f64),
            false => (seq, 0.0),
        };
        let tokens = (batch * taken) as f64;
        let attention = 8.0 * d * d + 4.0 * taken as f64 * d;
        let mix = if kind.has_experts() { self.mixture_flops() } else { 6.0 * d * self.d_dense as f64 };
        router + tokens * (attention + mix)
    }

    /// FLOPs of a mixture of experts per token.
    fn mixture_flops(&self) -> f64 {
        let (d, mixture) = (self.attention.d_model as f64, &self.mixture);
        let kept = match mixture.capacity {
            Capacity::Factor(factor) => factor.clamp(0.0, 1.0),
            Capacity::Dropless => 1.0,
        };
        let experts = mixture.top_k as f64 * kept + mixture.shared as f64;
        2.0 * d * mixture.experts as f64 + 6.0 * d * mixture.d_hidden as f64 * experts
    }
}
