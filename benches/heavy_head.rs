//! A GPT whose vocabulary makes its last layer the heaviest, cut between any of its blocks.

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::Vocabulary;
use burn_pipeline::cost::Partition;
use burn_pipeline::stage::{Batch, Stage, StageBox};
use burn_pipeline::train::{Builder, Pipeline, StageContext};
use pipeline_examples::gpt::{GptConfig, GptPart, Signal, next_token_loss};

/// The number of blocks. The embedding is in the first one's layer, the head in the last one's.
pub const BLOCKS: usize = 8;
const VOCABULARY: usize = 32_768;

/// The model.
pub fn config() -> GptConfig {
    GptConfig::new().with_d_model(128).with_layers(BLOCKS).with_heads(4).with_seq(64).with_vocab(VOCABULARY)
}

/// Consecutive blocks, each a layer of the model's finest cut.
#[derive(Module, Debug)]
struct Blocks {
    parts: Vec<GptPart>,
}

impl Stage for Blocks {
    type Input = Signal;
    type Extra = ();
    type Output = Signal;

    fn forward(&self, input: Signal, (): ()) -> Signal {
        self.parts.iter().fold(input, |signal, part| part.forward(signal, ()))
    }
}

/// A stage of the model, with the loss on the last one.
pub fn stage(at: &StageContext) -> StageBox {
    let blocks = at.layers(BLOCKS);
    let names = burn_pipeline::stage::Names::default().layers_from("parts", blocks.start);
    let part = |index| config().part(&StageContext { index, stages: BLOCKS, cut: None, ..at.clone() });
    let blocks = Blocks { parts: blocks.map(part).collect() };
    let stage = if at.is_last() { StageBox::with_loss(blocks, next_token_loss) } else { StageBox::new(blocks) };
    stage.named(names)
}

/// Blocks between a vocabulary-parallel embedding and head.
#[derive(Module, Debug)]
struct Between {
    position: Option<Embedding>,
    blocks: GptPart,
    norm: Option<LayerNorm>,
}

impl Stage for Between {
    type Input = Tensor<3>;
    type Extra = ();
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, (): ()) -> Tensor<3> {
        let x = match &self.position {
            Some(position) => x + position.weight.val().unsqueeze::<3>(),
            None => x,
        };
        let x = match self.blocks.forward(Signal::Hidden(x), ()) {
            Signal::Hidden(x) | Signal::Logits(x) => x,
            Signal::Tokens(_) => unreachable!("blocks put out hidden states"),
        };
        match &self.norm {
            Some(norm) => norm.forward(x),
            None => x,
        }
    }
}

/// A stage of the model without its vocabulary.
pub fn between(at: &StageContext) -> StageBox {
    let (config, blocks) = (config(), at.layers(BLOCKS));
    StageBox::new(Between {
        position: at.is_first().then(|| EmbeddingConfig::new(config.seq, config.d_model).init(&at.device)),
        // The embedding is layer 0.
        blocks: config.span(blocks.start + 1..blocks.end + 1, &at.device),
        norm: at.is_last().then(|| LayerNormConfig::new(config.d_model).init(&at.device)),
    })
}

/// The vocabulary alone.
pub fn vocabulary() -> Vocabulary {
    let width = config().d_model;
    Vocabulary::new()
        .embedding("token", move |device| EmbeddingConfig::new(VOCABULARY, width).init(device))
        .head("scores", move |device| LinearConfig::new(width, VOCABULARY).with_bias(false).init(device))
}

/// A batch for stages of [`between`].
pub fn tokens(sequences: usize) -> Batch {
    Batch::new(draw(sequences, 0)).target(draw(sequences, 31))
}

/// A batch of `sequences` sequences, one per microbatch.
pub fn batch(sequences: usize) -> Batch {
    Batch::new(Signal::Tokens(draw(sequences, 0))).target(draw(sequences, 31))
}

fn draw(sequences: usize, salt: i64) -> Tensor<2, Int> {
    let seq = config().seq;
    let tokens = Tensor::<1, Int>::arange(0..(sequences * seq) as i64, &Device::flex());
    tokens.mul_scalar(7919 + salt).remainder_scalar(VOCABULARY as i64).reshape([sequences, seq])
}

/// Everything that a pipeline of this model needs except its schedule.
pub fn builder(cut: Partition) -> Builder {
    let builder = Pipeline::builder().devices(vec![Device::flex()]).stages(stage).cut(cut);
    builder.optimizer(|| AdamWConfig::new().init())
}
