//! A small decoder of Burn's own layers on one device, with the ordinary embedding, head and cross entropy.

use burn::module::{Module, Param};
use burn::nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{
    Embedding, EmbeddingConfig, Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig, SwiGlu, SwiGluConfig,
};
use burn::optim::ModuleOptimizer;
use burn::tensor::{Bool, Device, Int, Tensor};
use burn_pipeline::stage::{Names, init_seeded, named_weights};
use pipeline_tests::reference::Reference;
use std::collections::BTreeMap;

pub(crate) const WIDTH: usize = 8;
/// A multiple of 2, 3 and 4, and not of 5 and 7.
pub(crate) const VOCABULARY: usize = 24;
pub(crate) const SEQUENCE: usize = 5;
/// Enough for two stages on each of four ranks.
pub(crate) const BLOCKS: usize = 8;

/// Large enough that every layer matters to the loss.
const INIT: Initializer = Initializer::Normal { mean: 0.0, std: 0.3 };

#[derive(Module, Debug)]
pub(crate) struct Block {
    norm_attention: LayerNorm,
    attention: MultiHeadAttention,
    norm_feed: LayerNorm,
    gated: SwiGlu,
    down: Linear,
}

impl Block {
    pub(crate) fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, seq, _] = x.dims();
        let mask = Tensor::<2, Bool>::tril_mask([seq, seq], 0, &x.device()).unsqueeze::<3>().expand([batch, seq, seq]);
        let input = MhaInput::self_attn(self.norm_attention.forward(x.clone())).mask_attn(mask);
        let x = x + self.attention.forward(input).context;
        x.clone() + self.down.forward(self.gated.forward(self.norm_feed.forward(x)))
    }
}

pub(crate) fn token(device: &Device) -> Embedding {
    init_seeded(1, device, |device| EmbeddingConfig::new(VOCABULARY, WIDTH).with_initializer(INIT).init(device))
}

pub(crate) fn position(device: &Device) -> Param<Tensor<2>> {
    init_seeded(2, device, |device| INIT.init([SEQUENCE, WIDTH], device))
}

pub(crate) fn block(place: usize, device: &Device) -> Block {
    init_seeded(10 + place as u64, device, |device| Block {
        norm_attention: LayerNormConfig::new(WIDTH).init(device),
        attention: MultiHeadAttentionConfig::new(WIDTH, 2).with_dropout(0.0).with_initializer(INIT).init(device),
        norm_feed: LayerNormConfig::new(WIDTH).init(device),
        gated: SwiGluConfig::new(WIDTH, 12).with_initializer(INIT).init(device),
        down: LinearConfig::new(12, WIDTH).with_initializer(INIT).init(device),
    })
}

pub(crate) fn norm(device: &Device) -> LayerNorm {
    LayerNormConfig::new(WIDTH).init(device)
}

pub(crate) fn scores(device: &Device) -> Linear {
    let head = LinearConfig::new(WIDTH, VOCABULARY).with_bias(false).with_initializer(INIT);
    init_seeded(3, device, |device| head.init(device))
}

/// The mean cross entropy in nats of scores `[batch, seq, vocabulary]`.
pub(crate) fn cross_entropy(scores: Tensor<3>, targets: Tensor<2, Int>) -> Tensor<1> {
    let [batch, seq, vocabulary] = scores.dims();
    let loss = CrossEntropyLossConfig::new().init(&scores.device());
    loss.forward(scores.reshape([batch * seq, vocabulary]), targets.reshape([batch * seq]))
}

#[derive(Module, Debug)]
pub(crate) struct Plain {
    token: Embedding,
    position: Param<Tensor<2>>,
    blocks: Vec<Block>,
    norm: LayerNorm,
    /// If `None`, the embedding's matrix scores the words.
    scores: Option<Linear>,
}

impl Plain {
    pub(crate) fn new() -> Self {
        let device = Device::flex().autodiff();
        Self { scores: Some(scores(&device)), ..Self::tied_on(&device, BLOCKS) }
    }

    pub(crate) fn tied() -> Self {
        Self::tied_on(&Device::flex().autodiff(), BLOCKS)
    }

    /// A tied model of `blocks` blocks on a device with autodiff.
    pub(crate) fn tied_on(device: &Device, blocks: usize) -> Self {
        Self {
            token: token(device),
            position: position(device),
            blocks: (0..blocks).map(|place| block(place, device)).collect(),
            norm: norm(device),
            scores: None,
        }
    }

    pub(crate) fn loss(&self, tokens: Tensor<2, Int>, targets: Tensor<2, Int>) -> Tensor<1> {
        let x = self.token.forward(tokens) + self.position.val().unsqueeze::<3>();
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        let x = self.norm.forward(x);
        let scores = match &self.scores {
            Some(scores) => scores.forward(x),
            None => x.matmul(self.token.weight.val().transpose().unsqueeze::<3>()),
        };
        cross_entropy(scores, targets)
    }
}

/// Tokens and targets `[samples, seq]`, from the whole vocabulary.
pub(crate) fn data(samples: usize) -> (Tensor<2, Int>, Tensor<2, Int>) {
    let numbers = || Tensor::<1, Int>::arange(0..(samples * SEQUENCE) as i64, &Device::flex());
    let shaped = |ids: Tensor<1, Int>| ids.remainder_scalar(VOCABULARY as i64).reshape([samples, SEQUENCE]);
    (shaped(numbers().mul_scalar(7)), shaped(numbers().mul_scalar(11).add_scalar(3)))
}

/// The losses and norms of some steps, and the weights after them by name.
#[derive(Debug, PartialEq)]
pub(crate) struct Trained {
    pub(crate) steps: Vec<(f64, f64)>,
    pub(crate) weights: BTreeMap<String, Vec<f32>>,
}

/// One step of the plain loop, over microbatches of these sizes: the loss and the norm before clipping.
pub(crate) fn plain_step(
    reference: &mut Reference<Plain>,
    sizes: &[usize],
    rate: f64,
    clip: Option<f64>,
    factor: f64,
) -> (f64, f64) {
    let (tokens, targets) = data(sizes.iter().sum());
    let given = reference.step(sizes, rate, clip, |model: &Plain, i| {
        let start: usize = sizes[..i].iter().sum();
        let rows = start..start + sizes[i];
        let (tokens, targets) = (tokens.clone().slice([rows.clone()]), targets.clone().slice([rows]));
        model.loss(tokens.autodiff(), targets.autodiff()).mul_scalar(factor)
    });
    (given.loss, given.norm)
}

pub(crate) fn plain_weights(model: &Plain) -> BTreeMap<String, Vec<f32>> {
    let weights = named_weights(model, &Names::default()).into_iter();
    let read = |weight: burn_pipeline::stage::NamedWeight| {
        (weight.names[0].clone(), weight.value.to_data().unwrap().iter::<f32>().collect())
    };
    weights.map(read).collect()
}

/// Some steps of the plain loop.
pub(crate) fn plain(sizes: &[usize], steps: usize, rate: f64, clip: f64, optimizer: ModuleOptimizer) -> Trained {
    plain_of(Plain::new(), sizes, steps, rate, clip, optimizer)
}

/// Like [`plain`], for a given model.
pub(crate) fn plain_of(
    model: Plain,
    sizes: &[usize],
    steps: usize,
    rate: f64,
    clip: f64,
    optimizer: ModuleOptimizer,
) -> Trained {
    let mut reference = Reference::resumed(model, optimizer);
    let steps = (0..steps).map(|_| plain_step(&mut reference, sizes, rate, Some(clip), 1.0)).collect();
    Trained { steps, weights: plain_weights(&reference.model) }
}
