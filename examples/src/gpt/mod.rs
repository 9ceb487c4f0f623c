//! A byte-level, decoder-only GPT as pipeline stages: pre-norm blocks, GELU of four times the width, learned
//! positions, explicit softmax attention.
//!
//! The model is a list of layers ([`GptConfig::model`]), which the pipeline cuts anywhere. For stages with a state of
//! their own (a cache, in `generate.rs`) one module type serves every stage ([`GptPart`]): the first holds the
//! embeddings, the last the head, and each its share of the blocks. Every layer draws its initial values with its own
//! seed, so both give the same numbers, whatever the cut.
//!
//! The model computes in the type of its parameters. Where these are half precision, norms compute in the type of
//! their own parameters ([`precision`] keeps them f32), and softmax and loss in f32.

mod layers;

use burn::config::Config;
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::boundary;
use burn_pipeline::cost::Partition;
use burn_pipeline::layers::{Layer, Model, Sequential};
use burn_pipeline::stage::{Names, Stage, StageBox, init_seeded};
use burn_pipeline::train::StageContext;
use burn_pipeline_moe::cache::{CacheError, LayerCache};
pub use layers::{Block, Embed, Head, Round, precision, wide};
use std::ops::Range;

/// The model's size.
#[derive(Config, Debug)]
pub struct GptConfig {
    /// The width of the hidden state.
    #[config(default = 128)]
    pub d_model: usize,
    /// The number of blocks.
    #[config(default = 4)]
    pub layers: usize,
    /// The number of attention heads, which divides the width.
    #[config(default = 4)]
    pub heads: usize,
    /// The maximum sequence length.
    #[config(default = 64)]
    pub seq: usize,
    /// The number of distinct tokens.
    #[config(default = 256)]
    pub vocab: usize,
    /// The seed of the initial values.
    #[config(default = 0)]
    pub seed: u64,
    /// True if the parameters of all but norms are bf16 by themselves, without masters.
    #[config(default = false)]
    pub bf16: bool,
}

/// The values that cross between stages.
#[derive(Debug, Clone)]
pub enum Signal {
    /// Token ids `[batch, seq]`, into the first stage.
    Tokens(Tensor<2, Int>),
    /// Hidden states `[batch, seq, d_model]`, between stages.
    Hidden(Tensor<3>),
    /// Scores of the next token `[batch, seq, vocab]`, out of the last stage.
    Logits(Tensor<3>),
}

boundary!(
    enum Signal {
        Tokens(a),
        Hidden(a),
        Logits(a),
    }
);

/// A contiguous part of the model.
#[derive(Module, Debug)]
pub struct GptPart {
    embed: Option<Embed>,
    blocks: Vec<Block>,
    head: Option<Head>,
}

impl GptConfig {
    /// The model as a list of layers.
    pub fn model(&self) -> Model {
        let (embed, block, head) = (self.clone(), self.clone(), self.clone());
        let start = |embed: &Embed, tokens: Tensor<2, Int>| embed.forward(tokens, 0);
        Sequential::new()
            .then(Layer::new("embed", move |at| embed.embed(&at.device), start))
            .repeat(self.layers, Layer::new("blocks", move |at| block.block(&at.device), Block::forward))
            .then(Layer::new("head", move |at| head.head(&at.device), Head::forward))
            .seed(self.seed)
            .loss(cross_entropy)
    }

    /// The part of the model that a stage holds, cut by blocks.
    pub fn part(&self, at: &StageContext) -> GptPart {
        let blocks = at.layers(self.layers);
        let start = if at.is_first() { 0 } else { blocks.start + 1 };
        self.span(start..blocks.end + 1 + usize::from(at.is_last()), &at.device)
    }

    /// The number of layers as partitioners count them: the embedding, the blocks, the head.
    pub fn all_layers(&self) -> usize {
        self.layers + 2
    }

    /// The layers' kinds, in order: `E`, an `A` per block, `L`.
    pub fn kinds(&self) -> String {
        format!("E{}L", "A".repeat(self.layers))
    }

    /// Consecutive layers of the model.
    pub fn span(&self, layers: Range<usize>, device: &Device) -> GptPart {
        let seeded = |layer: usize| self.seed.wrapping_mul(1_000_003).wrapping_add(layer as u64);
        let embed = layers.contains(&0).then(|| init_seeded(seeded(0), device, |device| self.embed(device)));
        let block = |layer| init_seeded(seeded(layer), device, |device| self.block(device));
        let blocks = layers.clone().filter(|layer| (1..=self.layers).contains(layer)).map(block).collect();
        let last = self.layers + 1;
        let head = layers.contains(&last).then(|| init_seeded(seeded(last), device, |device| self.head(device)));
        GptPart { embed, blocks, head }
    }

    /// A stage of the model, with the loss on the last one: a pipeline's stage factory.
    pub fn stage(&self, at: &StageContext) -> StageBox {
        self.boxed(at, self.part(at), at.layers(self.layers).start)
    }

    /// The same for a cut of all layers, including embedding and head.
    pub fn stage_of(&self, at: &StageContext, cut: &Partition) -> StageBox {
        // A stage beyond the cut is an empty part, which the pipeline refuses when it runs.
        let layers = cut.ranges().nth(at.index).unwrap_or_default();
        let first_block = layers.start.saturating_sub(1);
        self.boxed(at, self.span(layers, &at.device), first_block)
    }

    fn boxed(&self, at: &StageContext, part: GptPart, first_block: usize) -> StageBox {
        let stage = if at.is_last() { StageBox::with_loss(part, next_token_loss) } else { StageBox::new(part) };
        stage.named(Names::default().layers_from("blocks", first_block))
    }

    /// The number of weights of the whole model.
    pub fn parameters(&self) -> usize {
        let (d, v) = (self.d_model, self.vocab);
        // Two norms, four matmuls with their biases; embeddings; the last norm and the scores.
        let block = 4 * d + (3 * d * d + 3 * d) + (d * d + d) + (4 * d * d + 4 * d) + (4 * d * d + d);
        self.layers * block + (v + self.seq) * d + 2 * d + d * v + v
    }
}

/// The mean cross-entropy of the next token, in nats.
pub fn next_token_loss(output: Signal, target: Tensor<2, Int>) -> Tensor<1> {
    let (Signal::Logits(logits) | Signal::Hidden(logits)) = output else {
        panic!("the last stage must output logits; does it have a head?")
    };
    cross_entropy(logits, target)
}

/// The mean cross-entropy of scores `[batch, seq, vocab]`, in nats. Half-precision scores are cast to f32.
pub fn cross_entropy(logits: Tensor<3>, target: Tensor<2, Int>) -> Tensor<1> {
    let [batch, seq, vocab] = logits.dims();
    let logits = wide(logits);
    let loss = CrossEntropyLossConfig::new().init(&logits.device());
    loss.forward(logits.reshape([batch * seq, vocab]), target.reshape([batch * seq]))
}

impl Stage for GptPart {
    type Input = Signal;
    type Extra = ();
    type Output = Signal;

    fn forward(&self, input: Signal, (): ()) -> Signal {
        let hidden = self.blocks.iter().fold(self.enter(input, 0), |hidden, block| block.forward(hidden));
        self.leave(hidden)
    }
}

impl GptPart {
    /// The number of blocks.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Runs the part on tokens from position `start` on; `caches` hold the earlier ones, one per block.
    pub(crate) fn forward_cached(
        &self,
        input: Signal,
        start: usize,
        caches: &mut [LayerCache],
    ) -> Result<Signal, CacheError> {
        let mut blocks = self.blocks.iter().zip(caches);
        let hidden = blocks.try_fold(self.enter(input, start), |x, (block, cache)| block.forward_cached(x, cache))?;
        Ok(self.leave(hidden))
    }

    fn enter(&self, input: Signal, start: usize) -> Tensor<3> {
        match (input, &self.embed) {
            (Signal::Tokens(tokens), Some(embed)) => embed.forward(tokens, start),
            (Signal::Hidden(hidden), None) => hidden,
            (other, _) => panic!("a stage takes tokens if it is the first, else hidden states; got {other:?}"),
        }
    }

    fn leave(&self, hidden: Tensor<3>) -> Signal {
        match &self.head {
            Some(head) => Signal::Logits(head.forward(hidden)),
            None => Signal::Hidden(hidden),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(config: &GptConfig, index: usize, stages: usize) -> GptPart {
        config.part(&StageContext {
            index,
            stages,
            rank: 0,
            device: Device::flex(),
            cut: None,
            group: Default::default(),
            replicas: Default::default(),
        })
    }

    #[test]
    fn the_count_of_weights_is_that_of_the_modules_however_they_are_cut() {
        let config = GptConfig::new().with_d_model(12).with_layers(3).with_heads(2).with_seq(7).with_vocab(29);
        for stages in 1..=3 {
            let counted: usize = (0..stages).map(|index| part(&config, index, stages).num_params()).sum();
            assert_eq!(counted, config.parameters(), "{stages} stages");
        }
    }

    #[test]
    fn a_cut_of_all_layers_holds_each_of_them_once_with_the_same_values() {
        let config = GptConfig::new().with_d_model(8).with_layers(3).with_heads(2).with_seq(5).with_vocab(11);
        let values = |part: &GptPart| {
            let weights = burn_pipeline::stage::named_weights(part, &Names::default());
            weights.iter().map(|weight| weight.value.to_data().unwrap()).collect::<Vec<_>>()
        };
        let whole = values(&part(&config, 0, 1));
        for boundaries in [vec![1, 4], vec![2], vec![1, 2, 3, 4]] {
            let cut = Partition::from_boundaries(config.all_layers(), &boundaries).unwrap();
            let parts = cut.ranges().flat_map(|layers| values(&config.span(layers, &Device::flex())));
            assert_eq!(parts.collect::<Vec<_>>(), whole, "{cut}");
        }
    }

    #[test]
    fn a_byte_is_not_seen_before_its_time() {
        let config = GptConfig::new().with_d_model(12).with_layers(2).with_heads(2).with_seq(5).with_vocab(9);
        let model = part(&config, 0, 1);
        let scores = |tokens: [i32; 5]| {
            let tokens = Tensor::<2, Int>::from_data([tokens], &Device::flex());
            let (Signal::Logits(scores) | Signal::Hidden(scores)) = model.forward(Signal::Tokens(tokens), ()) else {
                panic!("the output is tokens")
            };
            scores.into_data().iter::<f32>().collect::<Vec<f32>>()
        };
        let (one, other) = (scores([1, 2, 3, 4, 5]), scores([1, 2, 3, 8, 0]));
        assert_eq!(one[..3 * 9], other[..3 * 9]);
        assert_ne!(one[3 * 9..4 * 9], other[3 * 9..4 * 9]);
    }
}
