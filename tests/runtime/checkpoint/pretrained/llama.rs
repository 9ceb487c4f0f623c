//! A Llama as stages, whose fields have Hugging Face's names.

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::tensor::activation::{silu, softmax};
use burn::tensor::{Bool, Device, Int, Tensor};
use burn_pipeline::boundary;
use burn_pipeline::stage::{Names, Stage, StageBox};
use burn_pipeline::train::StageContext;

pub(super) const VOCAB: usize = 40;
pub(super) const WIDTH: usize = 16;
pub(super) const INNER: usize = 24;
pub(super) const LAYERS: usize = 4;
pub(super) const HEADS: usize = 4;
pub(super) const KV_HEADS: usize = 2;
pub(super) const HEAD: usize = WIDTH / HEADS;
const EPSILON: f64 = 1e-5;
const THETA: f32 = 10_000.0;

#[derive(Debug)]
pub(super) enum Signal {
    Tokens(Tensor<2, Int>),
    Hidden(Tensor<3>),
}

boundary!(
    enum Signal {
        Tokens(a),
        Hidden(a),
    }
);

#[derive(Module, Debug)]
struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
}

#[derive(Module, Debug)]
struct Mlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

#[derive(Module, Debug)]
pub(super) struct Layer {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: Mlp,
}

/// Some of the layers, with the embedding before the first and the head after the last.
#[derive(Module, Debug)]
pub(super) struct Llama {
    embed_tokens: Option<Embedding>,
    layers: Vec<Layer>,
    norm: Option<RmsNorm>,
    lm_head: Option<Linear>,
}

pub(super) fn linear(from: usize, to: usize, device: &Device) -> Linear {
    LinearConfig::new(from, to).with_bias(false).init(device)
}

pub(super) fn norm(device: &Device) -> RmsNorm {
    RmsNormConfig::new(WIDTH).with_epsilon(EPSILON).init(device)
}

/// The cosines and sines `[seq, HEAD]` of rotary positions.
fn angles(seq: usize, device: &Device) -> [Tensor<2>; 2] {
    let angle = |i: usize| (i / HEAD) as f32 / THETA.powf((2 * (i % (HEAD / 2))) as f32 / HEAD as f32);
    let of = |f: fn(f32) -> f32| {
        let values: Vec<f32> = (0..seq * HEAD).map(|i| f(angle(i))).collect();
        Tensor::<1>::from_floats(values.as_slice(), device).reshape([seq, HEAD])
    };
    [of(f32::cos), of(f32::sin)]
}

impl Attention {
    fn new(device: &Device) -> Self {
        let (all, shared) = (HEADS * HEAD, KV_HEADS * HEAD);
        Self {
            q_proj: linear(WIDTH, all, device),
            k_proj: linear(WIDTH, shared, device),
            v_proj: linear(WIDTH, shared, device),
            o_proj: linear(all, WIDTH, device),
        }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, seq, _] = x.dims();
        let device = x.device();
        let split = |x: Tensor<3>, heads: usize| x.reshape([batch, seq, heads, HEAD]).swap_dims(1, 2);
        let [cos, sin] = angles(seq, &device).map(|angles| angles.unsqueeze::<4>());
        let turn = |x: Tensor<4>| {
            let (low, high) = (x.clone().narrow(3, 0, HEAD / 2), x.clone().narrow(3, HEAD / 2, HEAD / 2));
            x * cos.clone() + Tensor::cat(vec![-high, low], 3) * sin.clone()
        };
        let (query, key) =
            (split(self.q_proj.forward(x.clone()), HEADS), split(self.k_proj.forward(x.clone()), KV_HEADS));
        self.o_proj.forward(mixed(turn(query), turn(key), split(self.v_proj.forward(x), KV_HEADS)))
    }
}

/// The values `[batch, seq, WIDTH]` that queries `[batch, HEADS, seq, HEAD]` find; a key and a value are shared by
/// several heads.
pub(super) fn mixed(query: Tensor<4>, key: Tensor<4>, value: Tensor<4>) -> Tensor<3> {
    let ([batch, _, seq, _], device) = (query.dims(), query.device());
    let repeat = |x: Tensor<4>| {
        let x = x.unsqueeze_dim::<5>(2).expand([batch, KV_HEADS, HEADS / KV_HEADS, seq, HEAD]);
        x.reshape([batch, HEADS, seq, HEAD])
    };
    let later = Tensor::<2, Bool>::tril_mask([seq, seq], 0, &device).unsqueeze::<4>();
    let scores = query.matmul(repeat(key).swap_dims(2, 3)) / (HEAD as f32).sqrt();
    let scores = scores.mask_fill(later.expand([batch, HEADS, seq, seq]), -1e9);
    softmax(scores, 3).matmul(repeat(value)).swap_dims(1, 2).reshape([batch, seq, WIDTH])
}

impl Mlp {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        self.down_proj.forward(silu(self.gate_proj.forward(x.clone())) * self.up_proj.forward(x))
    }
}

impl Layer {
    pub(super) fn new(device: &Device) -> Self {
        let (gate_proj, up_proj) = (linear(WIDTH, INNER, device), linear(WIDTH, INNER, device));
        Self {
            input_layernorm: norm(device),
            self_attn: Attention::new(device),
            post_attention_layernorm: norm(device),
            mlp: Mlp { gate_proj, up_proj, down_proj: linear(INNER, WIDTH, device) },
        }
    }

    pub(super) fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let x = x.clone() + self.self_attn.forward(self.input_layernorm.forward(x));
        x.clone() + self.mlp.forward(self.post_attention_layernorm.forward(x))
    }
}

impl Stage for Llama {
    type Input = Signal;
    type Extra = ();
    type Output = Signal;

    fn forward(&self, input: Signal, _: ()) -> Signal {
        let x = match (input, &self.embed_tokens) {
            (Signal::Tokens(tokens), Some(embed)) => embed.forward(tokens),
            (Signal::Hidden(x), _) => x,
            (Signal::Tokens(_), None) => panic!("token ids came to a stage without an embedding"),
        };
        let x = self.layers.iter().fold(x, |x, layer| layer.forward(x));
        let x = self.norm.iter().fold(x, |x, norm| norm.forward(x));
        Signal::Hidden(self.lm_head.iter().fold(x, |x, head| head.forward(x)))
    }
}

/// The mean over all tokens, as in PyTorch.
pub(super) fn loss(output: Signal, targets: Tensor<2, Int>) -> Tensor<1> {
    let Signal::Hidden(logits) = output else { panic!("token ids came out") };
    let [batch, seq, vocab] = logits.dims();
    let loss = CrossEntropyLossConfig::new().init(&logits.device());
    loss.forward(logits.reshape([batch * seq, vocab]), targets.reshape([batch * seq]))
}

/// A stage under Hugging Face's names.
pub(super) fn stage(at: &StageContext) -> StageBox {
    let (share, device) = (at.layers(LAYERS), &at.device);
    let part = Llama {
        embed_tokens: at.is_first().then(|| EmbeddingConfig::new(VOCAB, WIDTH).init(device)),
        layers: share.clone().map(|_| Layer::new(device)).collect(),
        norm: at.is_last().then(|| norm(device)),
        lm_head: at.is_last().then(|| linear(WIDTH, VOCAB, device)),
    };
    let names = Names::default().layers_from("layers", share.start).renamed(|name| match name {
        "lm_head.weight" => name.to_owned(),
        _ => format!("model.{name}"),
    });
    match at.is_last() {
        true => StageBox::with_loss(part, loss).named(names),
        false => StageBox::new(part).named(names),
    }
}
