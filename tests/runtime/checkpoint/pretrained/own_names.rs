//! The same Llama as another author writes it in Burn: names of its own, fused projections, Burn's rotary encoding.

use super::llama::{HEAD, HEADS, INNER, KV_HEADS, LAYERS, Signal, VOCAB, WIDTH, linear, loss, mixed, norm};
use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, RmsNorm, RotaryEncoding, RotaryEncodingConfig};
use burn::store::PyTorchToBurnAdapter;
use burn::tensor::activation::silu;
use burn::tensor::{Device, Tensor};
use burn_pipeline::layers::{Layer, Model, Sequential};
use burn_pipeline::train::Pretrained;

/// The rows of queries, keys and values.
pub(super) const ROWS: [(&str, usize); 3] = [("q", HEADS * HEAD), ("k", KV_HEADS * HEAD), ("v", KV_HEADS * HEAD)];
pub(super) const GATE_UP: [(&str, usize); 2] = [("gate_proj", INNER), ("up_proj", INNER)];

/// Hugging Face's Llama for this model.
pub(super) fn from_hugging_face(weights: Pretrained) -> Pretrained {
    weights
        .rename("model.layers.{i}.self_attn.{p}_proj", "blocks.{i}.attention.{p}")
        .rename("model.layers.{i}.input_layernorm", "blocks.{i}.first_norm")
        .rename("model.layers.{i}.post_attention_layernorm", "blocks.{i}.second_norm")
        .rename("model.layers.{i}", "blocks.{i}")
        .rename("model.embed_tokens", "embedding")
        .rename("model.norm", "norm")
        .rename("lm_head", "head")
        .halves_to_pairs("blocks.{i}.attention.q", HEADS)
        .halves_to_pairs("blocks.{i}.attention.k", KV_HEADS)
        .join("blocks.{i}.attention.qkv", 0, &ROWS)
        .join("blocks.{i}.mlp.gate_up", 0, &GATE_UP)
        .adapter(PyTorchToBurnAdapter)
}

#[derive(Module, Debug)]
struct Attention {
    qkv: Linear,
    o: Linear,
    rotary: RotaryEncoding,
}

#[derive(Module, Debug)]
struct Mlp {
    gate_up: Linear,
    down_proj: Linear,
}

#[derive(Module, Debug)]
struct Block {
    first_norm: RmsNorm,
    attention: Attention,
    second_norm: RmsNorm,
    mlp: Mlp,
}

impl Block {
    fn new(device: &Device) -> Self {
        let rows = ROWS.iter().map(|(_, rows)| rows).sum();
        let attention = Attention {
            qkv: linear(WIDTH, rows, device),
            o: linear(HEADS * HEAD, WIDTH, device),
            rotary: RotaryEncodingConfig::new(32, HEAD).init(device),
        };
        let mlp = Mlp { gate_up: linear(WIDTH, 2 * INNER, device), down_proj: linear(INNER, WIDTH, device) };
        Self { first_norm: norm(device), attention, second_norm: norm(device), mlp }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, seq, _] = x.dims();
        let qkv = self.attention.qkv.forward(self.first_norm.forward(x.clone()));
        let part = |place: usize| {
            let (start, rows) = (ROWS[..place].iter().map(|(_, rows)| rows).sum(), ROWS[place].1);
            qkv.clone().narrow(2, start, rows).reshape([batch, seq, rows / HEAD, HEAD]).swap_dims(1, 2)
        };
        let rotary = &self.attention.rotary;
        let x = x + self.attention.o.forward(mixed(rotary.forward(part(0)), rotary.forward(part(1)), part(2)));
        let gate_up = self.mlp.gate_up.forward(self.second_norm.forward(x.clone()));
        let (gate, up) = (gate_up.clone().narrow(2, 0, INNER), gate_up.narrow(2, INNER, INNER));
        x + self.mlp.down_proj.forward(silu(gate) * up)
    }
}

/// The model as a list of layers.
pub(super) fn model() -> Model {
    let embed = |embedding: &Embedding, input: Signal| match input {
        Signal::Tokens(tokens) => embedding.forward(tokens),
        Signal::Hidden(x) => x,
    };
    let score = |head: &Linear, x: Tensor<3>| Signal::Hidden(head.forward(x));
    Sequential::new()
        .then(Layer::new("embedding", |at| EmbeddingConfig::new(VOCAB, WIDTH).init(&at.device), embed))
        .repeat(LAYERS, Layer::new("blocks", |at| Block::new(&at.device), Block::forward))
        .then(Layer::new("norm", |at| norm(&at.device), RmsNorm::forward))
        .then(Layer::new("head", |at| linear(WIDTH, VOCAB, &at.device), score))
        .loss(loss)
}
