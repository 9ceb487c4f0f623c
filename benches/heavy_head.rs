//! A GPT whose vocabulary makes its last layer the heaviest, cut between any of its blocks.

use burn::module::Module;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::cost::Partition;
use burn_pipeline::stage::{Batch, Stage, StageBox};
use burn_pipeline::train::{Builder, Pipeline, StageContext};
use pipeline_examples::gpt::{GptConfig, GptPart, Signal, next_token_loss};

/// Blocks; embedding and scores go with the first and the last one.
pub const BLOCKS: usize = 8;
const VOCABULARY: usize = 32_768;

/// The model.
pub fn config() -> GptConfig {
    GptConfig::new().with_d_model(128).with_layers(BLOCKS).with_heads(4).with_seq(64).with_vocab(VOCABULARY)
}

/// Some blocks in a row, each as the model's finest cut has it.
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
    let part = |index| config().part(&StageContext { index, stages: BLOCKS, ..at.clone() });
    let blocks = Blocks { parts: blocks.map(part).collect() };
    let stage = if at.is_last() { StageBox::with_loss(blocks, next_token_loss) } else { StageBox::new(blocks) };
    stage.named(names)
}

/// A batch of so many sequences, one a microbatch.
pub fn batch(sequences: usize) -> Batch {
    let seq = config().seq;
    let draw = |salt: i64| {
        let tokens = Tensor::<1, Int>::arange(0..(sequences * seq) as i64, &Device::flex());
        tokens.mul_scalar(7919 + salt).remainder_scalar(VOCABULARY as i64).reshape([sequences, seq])
    };
    Batch::new(Signal::Tokens(draw(0))).target(draw(31))
}

/// All that a pipeline of this model needs but what it runs.
pub fn builder(cut: Partition) -> Builder {
    let builder = Pipeline::builder().devices(vec![Device::flex()]).stages(stage).cut(cut);
    builder.optimizer(|| AdamWConfig::new().init())
}
