//! A list has the numbers of the same model as stages of its own, bit for bit: an encoder with a decoder, and the GPT
//! of the examples.

use super::weights;
use crate::cases::small_gpt;
use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::relu;
use burn::tensor::{Int, Tensor};
use burn_pipeline::cost::Partition;
use burn_pipeline::layers::{Layer, LayerContext, Model, Sequential};
use burn_pipeline::schedule::{Chunks, Size, by_name};
use burn_pipeline::stage::{SplitBackward, Stage, StageBox};
use burn_pipeline::train::StageContext;
use burn_pipeline::{Batch, Builder, Pipeline, boundary, init_seeded};
use pipeline_examples::gpt::Signal as GptSignal;
use pipeline_tests::device::device;

const SCHEDULES: [(&str, usize); 6] =
    [("GPipe", 1), ("1F1B", 3), ("Interleaved1F1B", 2), ("ZBH1", 4), ("ZBVZeroBubble", 2), ("DualPipeV", 2)];
const SAMPLES: usize = 4;

fn builder(schedule: &str, ranks: usize) -> (Builder, usize) {
    let chunks = if let Chunks::Exactly(chunks) = by_name(schedule).unwrap().info().chunks { chunks } else { 1 };
    let builder = Pipeline::builder().schedule(schedule, Size { ranks, chunks, microbatches: SAMPLES });
    (builder.devices(vec![device()]).optimizer(|| AdamWConfig::new().init()), ranks * chunks)
}

/// The losses of some steps, and the weights after them.
fn trained(builder: Builder, batch: impl Fn(i64) -> Batch) -> (Vec<f64>, Vec<Vec<f32>>) {
    let mut pipeline = builder.build().unwrap();
    let losses = (0..3).map(|step| pipeline.step(batch(step), 1e-2).unwrap().loss).collect();
    (losses, weights(&mut pipeline))
}

fn ids(step: i64, length: usize, below: i64) -> Tensor<2, Int> {
    let count = (SAMPLES * length) as i64;
    let ids = Tensor::<1, Int>::arange(7 * step..7 * step + count, &device()).mul_scalar(5);
    ids.remainder_scalar(below).reshape([SAMPLES, length])
}

const WORDS: usize = 30;
const WIDTH: usize = 8;
const BLOCKS: usize = 4;
/// The encoder's layers are 1 to 4, the decoder's 6 to 9.
const LAYERS: usize = 2 * BLOCKS + 3;

type Decoding = (Tensor<3>, Tensor<3>);

fn decode(own: &Linear, (x, memory): Decoding) -> Decoding {
    (relu(own.forward(x)) + memory.clone().mean_dim(1), memory)
}

fn loss(scores: Tensor<3>, wanted: Tensor<3>) -> Tensor<1> {
    (scores - wanted).square().mean()
}

/// The list of the guide (`real_models`).
fn listed() -> Model {
    let embed = |at: &LayerContext| EmbeddingConfig::new(WORDS, WIDTH).init(&at.device);
    let linear = |at: &LayerContext| LinearConfig::new(WIDTH, WIDTH).init(&at.device);
    let target = |embed: &Embedding, (memory, ids): (Tensor<3>, Tensor<2, Int>)| (embed.forward(ids), memory);
    Sequential::new()
        .then(Layer::new("source", embed, Embedding::forward))
        .repeat(BLOCKS, Layer::new("encoder", linear, |own: &Linear, x| relu(own.forward(x))))
        .then(Layer::new("target", embed, target).extras(["decoder_ids"]))
        .repeat(BLOCKS, Layer::new("decoder", linear, decode))
        .then(Layer::new("head", linear, |own: &Linear, (x, _): Decoding| own.forward(x)))
        .loss(loss)
}

/// What crosses a boundary, the first one and the last one included.
enum Signal {
    Ids(Tensor<2, Int>),
    Hidden(Tensor<3>),
    Decoding(Decoding),
}
boundary!(
    enum Signal {
        Ids(ids),
        Hidden(x),
        Decoding(both),
    }
);

/// Any contiguous part of the same model.
#[derive(Module, Debug)]
struct Part {
    source: Option<Embedding>,
    encoder: Vec<Linear>,
    target: Option<Embedding>,
    decoder: Vec<Linear>,
    head: Option<Linear>,
}

impl Stage for Part {
    type Input = Signal;
    type Extra = Tensor<2, Int>;
    type Output = Signal;

    fn extras(&self) -> Vec<&'static str> {
        vec!["decoder_ids"]
    }

    fn forward(&self, input: Signal, decoder_ids: Tensor<2, Int>) -> Signal {
        let both = match (input, &self.target) {
            (Signal::Decoding(both), _) => both,
            (encoded, target) => {
                let x = match (encoded, &self.source) {
                    (Signal::Ids(ids), Some(source)) => source.forward(ids),
                    (Signal::Hidden(x), _) => x,
                    _ => panic!("ids enter at the first stage"),
                };
                let x = self.encoder.iter().fold(x, |x, own| relu(own.forward(x)));
                let Some(target) = target else { return Signal::Hidden(x) };
                (target.forward(decoder_ids), x)
            }
        };
        let both = self.decoder.iter().fold(both, |both, own| decode(own, both));
        match &self.head {
            Some(head) => Signal::Hidden(head.forward(both.0)),
            None => Signal::Decoding(both),
        }
    }
}

fn stage(at: &StageContext) -> StageBox {
    let layers = at.layers(LAYERS);
    let has = |layer: usize| layers.contains(&layer);
    let linear =
        |layer: usize| init_seeded(layer as u64, &at.device, |device| LinearConfig::new(WIDTH, WIDTH).init(device));
    let embedding =
        |layer: usize| init_seeded(layer as u64, &at.device, |device| EmbeddingConfig::new(WORDS, WIDTH).init(device));
    let (target, head) = (BLOCKS + 1, LAYERS - 1);
    let part = Part {
        source: has(0).then(|| embedding(0)),
        encoder: (1..target).filter(|&layer| has(layer)).map(linear).collect(),
        target: has(target).then(|| embedding(target)),
        decoder: (target + 1..head).filter(|&layer| has(layer)).map(linear).collect(),
        head: has(head).then(|| linear(head)),
    };
    let scores = |output: Signal, wanted: Tensor<3>| {
        let Signal::Hidden(scores) = output else { panic!("scores come out of the last stage") };
        loss(scores, wanted)
    };
    if at.is_last() { StageBox::with_loss(part, scores) } else { StageBox::new(part) }
}

#[test]
fn an_encoder_and_a_decoder_as_a_list_equal_their_stages() {
    let batch = |input: Batch, step: i64| {
        let wanted = ids(step + 40, 3 * WIDTH, 11).float().reshape([SAMPLES, 3, WIDTH]) / 11.0;
        input.extra("decoder_ids", ids(step + 20, 3, WORDS as i64)).target(wanted)
    };
    for (schedule, ranks) in SCHEDULES {
        for split in [SplitBackward::Eager, SplitBackward::Captured] {
            let of = || builder(schedule, ranks).0.split(split);
            let input = |step| ids(step, 5, WORDS as i64);
            let of_layers = trained(of().layers(listed()), |step| batch(Batch::new(input(step)), step));
            let of_stages = trained(of().stages(stage), |step| batch(Batch::new(Signal::Ids(input(step))), step));
            assert_eq!(of_layers.0, of_stages.0, "{schedule} over {ranks}, {split:?}");
            assert!(of_layers.1 == of_stages.1, "{schedule} over {ranks}, {split:?}: weights");
        }
    }
}

#[test]
fn the_gpt_as_a_list_equals_its_stages() {
    let (config, target) = (small_gpt(), |step| ids(step + 3, 6, 17));
    for (schedule, ranks) in SCHEDULES {
        for split in [SplitBackward::Eager, SplitBackward::Captured] {
            let (own, (builder, stages)) = (config.clone(), builder(schedule, ranks));
            let builder = builder.split(split);
            // Stages are cut by blocks; the list has the embedding before them, and the head after them.
            let ends = Partition::even(config.layers, stages).unwrap().boundaries().to_vec();
            let ends: Vec<usize> = ends.into_iter().map(|block| block + 1).collect();
            let cut = Partition::from_boundaries(config.all_layers(), &ends).unwrap();
            let list = builder.clone().layers(config.model()).cut(cut);
            let of_layers = trained(list, |step| Batch::new(ids(step, 6, 17)).target(target(step)));
            let of_stages = trained(builder.stages(move |at| own.stage(at)), |step| {
                Batch::new(GptSignal::Tokens(ids(step, 6, 17))).target(target(step))
            });
            assert_eq!(of_layers.0, of_stages.0, "{schedule} over {ranks}, {split:?}");
            assert!(of_layers.1 == of_stages.1, "{schedule} over {ranks}, {split:?}: weights");
        }
    }
}
