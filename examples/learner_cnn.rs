//! An ordinary Burn training program as a pipeline, under Burn's own loop with its metrics, checkpoints and early
//! stopping: a small CNN learns to classify stripes, crosses and squares.
//!
//! `cargo run --release -p pipeline-examples --features learner --example learner_cnn`
//!
//! The last section holds everything that a program for one device lacks: two stages, the cut of the model, and the
//! training strategy. `-- --one-device` trains without it, to the same numbers up to rounding.

#![allow(clippy::print_stdout, reason = "it is a program")]

use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::lr_scheduler::step::StepLrSchedulerConfig;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{GroupNorm, GroupNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor, activation::relu};
use burn_pipeline::{Batch, Pipeline, Size, Stage, StageBox, StageContext, init_seeded};
use burn_pipeline_learner::{PipelineModel, PipelineStrategy};
use burn_train::metric::{AccuracyMetric, LossMetric};
use burn_train::{ClassificationOutput, InferenceStep, Learner, SupervisedTraining, TrainOutput, TrainStep};

/// The width and height of images.
const SIDE: usize = 16;
/// Horizontal stripes, vertical stripes, crosses, squares.
const CLASSES: usize = 4;
/// The channels before each block, and after the last one.
const CHANNELS: [usize; 5] = [1, 8, 16, 16, 32];

// The model.

#[derive(Module, Debug)]
struct Block {
    conv: Conv2d,
    norm: GroupNorm,
    pool: MaxPool2d,
}

impl Block {
    fn new(from: usize, to: usize, device: &Device) -> Self {
        Self {
            conv: Conv2dConfig::new([from, to], [3, 3]).with_padding(PaddingConfig2d::Same).init(device),
            norm: GroupNormConfig::new(4, to).init(device),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        self.pool.forward(relu(self.norm.forward(self.conv.forward(x))))
    }
}

fn features(blocks: &[Block], x: Tensor<4>) -> Tensor<4> {
    blocks.iter().fold(x, |x, block| block.forward(x))
}

#[derive(Module, Debug)]
struct Cnn {
    blocks: Vec<Block>,
    head: Linear,
}

impl Cnn {
    fn new(device: &Device) -> Self {
        init_seeded(1, device, |device| Self {
            blocks: CHANNELS.windows(2).map(|channels| Block::new(channels[0], channels[1], device)).collect(),
            head: LinearConfig::new(CHANNELS[4], CLASSES).init(device),
        })
    }

    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        self.head.forward(features(&self.blocks, images).flatten(1, 3))
    }
}

fn loss(scores: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    CrossEntropyLossConfig::new().init(&scores.device()).forward(scores, targets)
}

fn outcome(scores: Tensor<2>, targets: Tensor<1, Int>) -> ClassificationOutput {
    ClassificationOutput::new(loss(scores.clone(), targets.clone()), scores, targets)
}

impl TrainStep for Cnn {
    type Input = Images;
    type Output = ClassificationOutput;

    fn step(&self, item: Images) -> TrainOutput<ClassificationOutput> {
        let outcome = outcome(self.forward(item.images), item.targets);
        TrainOutput::new(self, outcome.loss.backward(), outcome)
    }
}

impl InferenceStep for Cnn {
    type Input = Images;
    type Output = ClassificationOutput;

    fn step(&self, item: Images) -> ClassificationOutput {
        outcome(self.forward(item.images), item.targets)
    }
}

// The data.

#[derive(Clone, Debug)]
struct Images {
    images: Tensor<4>,
    targets: Tensor<1, Int>,
}

#[derive(Clone)]
struct ImageBatcher;

impl Batcher<(Vec<f32>, i64), Images> for ImageBatcher {
    fn batch(&self, items: Vec<(Vec<f32>, i64)>, device: &Device) -> Images {
        let (pixels, targets): (Vec<Vec<f32>>, Vec<i64>) = items.into_iter().unzip();
        let images = Tensor::<1>::from_floats(pixels.concat().as_slice(), device);
        let images = images.reshape([targets.len(), 1, SIDE, SIDE]);
        Images { images, targets: Tensor::from_ints(targets.as_slice(), device) }
    }
}

/// Noisy images of the classes in turn, each shape at a random position.
fn drawn(count: usize, mut seed: u32) -> InMemDataset<(Vec<f32>, i64)> {
    let mut random = move || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        seed >> 8
    };
    let image = |i: usize| {
        let (class, x, y) = (i % CLASSES, 3 + random() as usize % 8, 3 + random() as usize % 8);
        let is_set = |row: usize, column: usize| match class {
            0 => row == y,
            1 => column == x,
            2 => row == y || column == x,
            _ => row.abs_diff(y) < 3 && column.abs_diff(x) < 3,
        };
        let pixel = |at: usize| f32::from(u8::from(is_set(at / SIDE, at % SIDE))) + random() as f32 / (1 << 24) as f32;
        ((0..SIDE * SIDE).map(pixel).collect(), class as i64)
    };
    InMemDataset::new((0..count).map(image).collect())
}

// The training, and what makes it a pipeline.

fn main() {
    let device = Device::flex().autodiff();
    let train = DataLoaderBuilder::new(ImageBatcher).batch_size(32).shuffle(1).build(drawn(480, 1));
    let valid = DataLoaderBuilder::new(ImageBatcher).batch_size(32).build(drawn(120, 2));
    let rate = StepLrSchedulerConfig::new(3e-3, 30).with_gamma(0.5).init().expect("a rate above 0");
    let learner = Learner::new(Cnn::new(&device), AdamWConfig::new().init(), rate);
    let mut training = SupervisedTraining::new("runs/learner_cnn", train, valid)
        .metrics((LossMetric::new(), AccuracyMetric::new()))
        .with_default_checkpointers()
        .num_epochs(4)
        .summary();
    if !std::env::args().any(|argument| argument == "--one-device") {
        let two_ranks = Pipeline::builder().schedule("1F1B", Size::new(2, 4)).devices(vec![Device::flex()]);
        training = training.with_training_strategy(PipelineStrategy::new(two_ranks).into());
    }
    let result = training.launch(learner);
    match result.error {
        None => println!("trained: {} parameters, checkpoints in runs/learner_cnn", result.model.num_params()),
        Some(error) => println!("{error}"),
    }
}

/// The first blocks.
#[derive(Module, Debug)]
struct Lower {
    blocks: Vec<Block>,
}

impl Stage for Lower {
    type Input = Tensor<4>;
    type Extra = ();
    type Output = Tensor<4>;

    fn forward(&self, images: Tensor<4>, (): ()) -> Tensor<4> {
        features(&self.blocks, images)
    }
}

/// The last stage is itself a CNN, with fewer blocks.
impl Stage for Cnn {
    type Input = Tensor<4>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<4>, (): ()) -> Tensor<2> {
        self.forward(x)
    }
}

impl PipelineModel for Cnn {
    type LastOutput = Tensor<2>;

    fn stage(&self, at: &StageContext) -> StageBox {
        let blocks = self.blocks[at.layers(self.blocks.len())].to_vec();
        match at.is_last() {
            false => StageBox::new(Lower { blocks }),
            true => StageBox::with_loss(Cnn { blocks, head: self.head.clone() }, loss),
        }
    }

    fn batch(item: &Images) -> Batch {
        Batch::new(item.images.clone()).target(item.targets.clone())
    }

    fn outcome(item: Images, scores: Tensor<2>) -> ClassificationOutput {
        outcome(scores, item.targets)
    }
}
