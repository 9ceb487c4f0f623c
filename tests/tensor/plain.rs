//! A small decoder of Burn's own layers, on one device.

use burn::module::{Module, Param};
use burn::nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{
    Embedding, EmbeddingConfig, Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig, SwiGlu, SwiGluConfig,
};
use burn::tensor::{Bool, Device, Int, Tensor};
use burn_pipeline::stage::init_seeded;

/// The model's size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    pub(crate) width: usize,
    pub(crate) heads: usize,
    pub(crate) hidden: usize,
    pub(crate) vocab: usize,
    pub(crate) seq: usize,
    pub(crate) blocks: usize,
    pub(crate) seed: u64,
    /// True if hidden states are cut along the sequence between layers and at boundaries.
    pub(crate) sequence: bool,
}

pub(crate) const SMALL: Config =
    Config { width: 8, heads: 4, hidden: 12, vocab: 20, seq: 5, blocks: 4, seed: 3, sequence: false };

/// The same with a sequence length that two and three ranks divide.
pub(crate) const SEQUENCE: Config = Config { seq: 6, sequence: true, ..SMALL };

/// A sequence length that four ranks divide, and blocks for six stages.
pub(crate) const SIZED: Config = Config { seq: 8, blocks: 6, ..SMALL };

/// Large enough that every layer matters to the loss.
const INIT: Initializer = Initializer::Normal { mean: 0.0, std: 0.3 };

#[derive(Module, Debug)]
pub(crate) struct Embed {
    pub(crate) token: Embedding,
    pub(crate) position: Param<Tensor<2>>,
}

#[derive(Module, Debug)]
pub(crate) struct Block {
    pub(crate) norm_attention: LayerNorm,
    pub(crate) attention: MultiHeadAttention,
    pub(crate) norm_feed: LayerNorm,
    pub(crate) feed: Feed,
}

#[derive(Module, Debug)]
pub(crate) struct Feed {
    pub(crate) gated: SwiGlu,
    pub(crate) down: Linear,
}

#[derive(Module, Debug)]
pub(crate) struct Head {
    pub(crate) norm: LayerNorm,
    pub(crate) scores: Linear,
}

impl Config {
    pub(crate) fn embed(&self, device: &Device) -> Embed {
        init_seeded(self.seed, device, |device| Embed {
            token: EmbeddingConfig::new(self.vocab, self.width).with_initializer(INIT).init(device),
            position: INIT.init([self.seq, self.width], device),
        })
    }

    pub(crate) fn block(&self, place: usize, device: &Device) -> Block {
        let Self { width, heads, hidden, .. } = *self;
        init_seeded(self.seed + 1 + place as u64, device, |device| Block {
            norm_attention: LayerNormConfig::new(width).init(device),
            attention: MultiHeadAttentionConfig::new(width, heads)
                .with_dropout(0.0)
                .with_initializer(INIT)
                .init(device),
            norm_feed: LayerNormConfig::new(width).init(device),
            feed: Feed {
                gated: SwiGluConfig::new(width, hidden).with_bias(true).with_initializer(INIT).init(device),
                down: LinearConfig::new(hidden, width).with_initializer(INIT).init(device),
            },
        })
    }

    pub(crate) fn head(&self, device: &Device) -> Head {
        init_seeded(self.seed + 100, device, |device| Head {
            norm: LayerNormConfig::new(self.width).init(device),
            scores: LinearConfig::new(self.width, self.vocab).with_initializer(INIT).init(device),
        })
    }

    /// The whole model.
    pub(crate) fn plain(&self) -> Plain {
        self.plain_on(&Device::flex().autodiff())
    }

    /// The whole model on a device with autodiff.
    pub(crate) fn plain_on(&self, device: &Device) -> Plain {
        let blocks = (0..self.blocks).map(|place| self.block(place, device)).collect();
        Plain { embed: self.embed(device), blocks, head: self.head(device) }
    }

    /// Tokens and targets `[samples, seq]`.
    pub(crate) fn data(&self, samples: usize) -> (Tensor<2, Int>, Tensor<2, Int>) {
        let count = (samples * self.seq) as i64;
        let numbers = || Tensor::<1, Int>::arange(0..count, &Device::flex());
        let shaped = |ids: Tensor<1, Int>| ids.remainder_scalar(self.vocab as i64).reshape([samples, self.seq]);
        (shaped(numbers().mul_scalar(7)), shaped(numbers().mul_scalar(11).add_scalar(3)))
    }
}

/// True where attention must not look.
pub(crate) fn future(batch: usize, seq: usize, device: &Device) -> Tensor<3, Bool> {
    Tensor::<2, Bool>::tril_mask([seq, seq], 0, device).unsqueeze::<3>().expand([batch, seq, seq])
}

#[derive(Module, Debug)]
pub(crate) struct Plain {
    embed: Embed,
    blocks: Vec<Block>,
    head: Head,
}

impl Plain {
    pub(crate) fn loss(&self, tokens: Tensor<2, Int>, targets: Tensor<2, Int>) -> Tensor<1> {
        let [batch, seq] = tokens.dims();
        let mask = future(batch, seq, &tokens.device());
        let x = self.embed.token.forward(tokens) + self.embed.position.val().unsqueeze::<3>();
        let x = self.blocks.iter().fold(x, |x, block| {
            let input = MhaInput::self_attn(block.norm_attention.forward(x.clone())).mask_attn(mask.clone());
            let x = x + block.attention.forward(input).context;
            x.clone() + block.feed.down.forward(block.feed.gated.forward(block.norm_feed.forward(x)))
        });
        let scores = self.head.scores.forward(self.head.norm.forward(x));
        let [_, _, vocab] = scores.dims();
        let loss = CrossEntropyLossConfig::new().init(&scores.device());
        loss.forward(scores.reshape([batch * seq, vocab]), targets.reshape([batch * seq]))
    }
}
