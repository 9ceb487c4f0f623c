//! A small decoder without attention, whole and in stages, whose casts decide what is half precision.

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::gelu;
use burn::tensor::{Device, FloatDType, Int, Tensor};
use burn_pipeline::stage::init_seeded;
use burn_pipeline::{Batch, Stage};
use pipeline_tests::device::device;

const WIDTH: usize = 8;
/// No multiple of 3.
const WORDS: usize = 20;
pub(super) const BLOCKS: usize = 4;
pub(super) const SAMPLES: usize = 24;

#[derive(Module, Debug)]
pub(super) struct Block {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
}

/// Some blocks, with an embedding before them and a head behind them if they are a whole model's.
#[derive(Module, Debug)]
pub(super) struct Part {
    pub(super) token: Option<Embedding>,
    pub(super) blocks: Vec<Block>,
    pub(super) scores: Option<Linear>,
}

/// Which layers are parallel, and whether they are one matrix.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Spread {
    Embedding,
    Both,
    Tied,
}

pub(super) fn token(device: &Device) -> Embedding {
    init_seeded(50, device, |device| EmbeddingConfig::new(WORDS, WIDTH).init(device))
}

pub(super) fn scores(device: &Device) -> Linear {
    init_seeded(51, device, |device| LinearConfig::new(WIDTH, WORDS).with_bias(false).init(device))
}

pub(super) fn blocks(places: std::ops::Range<usize>, device: &Device) -> Vec<Block> {
    let block = |place| {
        init_seeded(place as u64, device, |device| Block {
            norm: LayerNormConfig::new(WIDTH).init(device),
            up: LinearConfig::new(WIDTH, 2 * WIDTH).init(device),
            down: LinearConfig::new(2 * WIDTH, WIDTH).init(device),
        })
    };
    places.map(block).collect()
}

impl Part {
    pub(super) fn whole(spread: Spread) -> Self {
        let device = device().autodiff();
        let scores = (spread != Spread::Tied).then(|| scores(&device));
        Self { token: Some(token(&device)), blocks: blocks(0..BLOCKS, &device), scores }
    }

    fn hidden(&self, x: Tensor<2>) -> Tensor<2> {
        self.blocks.iter().fold(x, |x, block| {
            let half = FloatDType::from(block.up.weight.val().dtype());
            let normed = block.norm.forward(x.clone().cast(FloatDType::F32)).cast(half);
            x.cast(half) + block.down.forward(gelu(block.up.forward(normed)))
        })
    }

    /// The loss of the whole model. The head computes in the type of its matrix.
    pub(super) fn loss(&self, tokens: Tensor<1, Int>, targets: Tensor<1, Int>) -> Tensor<1> {
        let token = self.token.as_ref().unwrap();
        let x = self.hidden(token.forward(tokens.unsqueeze::<2>()).squeeze_dim(0));
        let matrix = match &self.scores {
            Some(scores) => scores.weight.val(),
            None => token.weight.val().transpose(),
        };
        cross_entropy(x.cast(FloatDType::from(matrix.dtype())).matmul(matrix), targets)
    }
}

pub(super) fn cross_entropy(scores: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    CrossEntropyLossConfig::new().init(&scores.device()).forward(scores.cast(FloatDType::F32), targets)
}

impl Stage for Part {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        let x = self.hidden(x);
        match &self.scores {
            Some(scores) => scores.forward(x),
            None => x,
        }
    }
}

pub(super) fn data(step: usize) -> (Tensor<1, Int>, Tensor<1, Int>) {
    let first = 100 * step as i64;
    let numbers = Tensor::<1, Int>::arange(first..first + SAMPLES as i64, &device());
    let ids = |numbers: Tensor<1, Int>| numbers.remainder_scalar(WORDS as i64);
    (ids(numbers.clone().mul_scalar(7)), ids(numbers.mul_scalar(11).add_scalar(3)))
}

pub(super) fn batch(step: usize) -> Batch {
    let (tokens, targets) = data(step);
    Batch::new(tokens).target(targets)
}
