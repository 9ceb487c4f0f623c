//! Multi-token prediction: small modules after the last block that predict the tokens after the next one.
//!
//! DeepSeek-AI, "DeepSeek-V3" (2024), section 2.2: module `k` joins the hidden state of module `k - 1` at token `i`
//! with the embedding of token `i + k` and runs one block; the model's own head then scores token `i + k + 1`.
//! Embedding and head are the main model's, so in a pipeline the last stage holds a copy of the first stage's
//! embedding, a tied parameter (`burn_pipeline::train::Builder::share`).
//!
//! Module `k` (from 1) reads the first `seq - k` tokens; the others have no token `i + k` in the sequence.

use super::block::{Block, BlockConfig, BlockKind};
use super::context::AttentionContext;
use super::initial::SMALL;
use super::layer_auxiliary::LayerAuxiliary;
use super::transformer::normed;
use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::ops::DeferredForward;
use burn_pipeline::tensor_parallel::TensorGroup;

/// A module that predicts one more token ahead.
#[derive(Module, Debug)]
pub struct MultiTokenPrediction {
    norm_hidden: LayerNorm,
    norm_token: LayerNorm,
    join: Linear,
    block: Block,
}

impl MultiTokenPrediction {
    /// Initializes a module with a block of this kind.
    ///
    /// # Panics
    /// Same as [`BlockConfig::init`].
    pub fn new(config: &BlockConfig, kind: BlockKind, device: &Device) -> Self {
        let d = config.attention.d_model;
        Self {
            norm_hidden: LayerNormConfig::new(d).init(device),
            norm_token: LayerNormConfig::new(d).init(device),
            join: LinearConfig::new(2 * d, d).with_bias(false).with_initializer(SMALL).init(device),
            block: config.init(kind, device),
        }
    }

    /// Same as [`Block::cut`].
    pub fn cut(self, group: &TensorGroup) -> Self {
        Self { block: self.block.cut(group), ..self }
    }

    /// Same as [`Block::expert_parallel`].
    pub fn expert_parallel(self, replicas: &TensorGroup) -> Self {
        Self { block: self.block.expert_parallel(replicas), ..self }
    }

    /// Same as [`Block::with_updated_bias`].
    pub fn with_updated_bias(self, load: &[f64], rate: f64) -> Self {
        Self { block: self.block.with_updated_bias(load, rate), ..self }
    }

    /// Same as [`Block::skip_capture`].
    pub fn skip_capture(&self) -> Option<&'static str> {
        self.block.skip_capture()
    }

    /// Runs the module on hidden states and the embedded tokens that it joins to them, both `[batch, seq, d_model]`.
    /// Tokens of another element type are cast to that of the hidden states.
    pub fn forward(
        &self,
        hidden: Tensor<3>,
        token: Tensor<3>,
        context: &AttentionContext,
    ) -> (Tensor<3>, LayerAuxiliary) {
        let own = hidden.dtype();
        let token = normed(&self.norm_token, token).cast(own);
        let joint = Tensor::cat(vec![normed(&self.norm_hidden, hidden), token], 2);
        self.block.forward(self.join.forward_deferred(joint), context)
    }
}

/// Runs the modules one after another on the last block's hidden states `[batch, seq, d_model]` of `tokens`
/// `[batch, seq]`. Returns for module `k`, from 1, the hidden states `[batch, seq - k, d_model]`, to be scored against
/// token `i + k + 1`, and the auxiliary losses of its routers.
///
/// # Panics
/// Panics if there are not fewer modules than tokens of a sequence.
pub fn predict_ahead(
    modules: &[MultiTokenPrediction],
    hidden: Tensor<3>,
    tokens: &Tensor<2, Int>,
    embed: impl Fn(Tensor<2, Int>) -> Tensor<3>,
    context: &AttentionContext,
) -> Vec<(Tensor<3>, LayerAuxiliary)> {
    let [_, seq] = tokens.dims();
    let depths = modules.len();
    assert!(
        depths < seq,
        "{depths} tokens ahead do not fit into sequences of {seq}; use fewer modules, or longer sequences"
    );
    let mut hidden = hidden;
    let run = |(module, k): (&MultiTokenPrediction, usize)| {
        let left = seq - k;
        let token = embed(tokens.clone().narrow(1, k, left));
        let (out, auxiliary) = module.forward(hidden.clone().narrow(1, 0, left), token, &context.first(left));
        hidden = out.clone();
        (out, auxiliary)
    };
    modules.iter().zip(1..).map(run).collect()
}
