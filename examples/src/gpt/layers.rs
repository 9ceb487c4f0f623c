//! The layers of the GPT: embeddings, pre-norm blocks, the head; their initial values and types.

use super::GptConfig;
use burn::module::{Module, ModuleMapper, Param, ParamGroup};
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::{gelu, softmax};
use burn::tensor::{Bool, DType, Device, FloatDType, Int, Tensor, TensorData};
use burn_pipeline::stage::Precision;
use burn_pipeline_moe::cache::{CacheError, LayerCache};

/// Token and position embeddings.
#[derive(Module, Debug)]
pub struct Embed {
    token: Embedding,
    position: Embedding,
}

/// One pre-norm block.
#[derive(Module, Debug)]
pub struct Block {
    norm_attention: LayerNorm,
    query_key_value: Linear,
    project: Linear,
    norm_mlp: LayerNorm,
    up: Linear,
    down: Linear,
    heads: usize,
}

/// Final norm and scores.
#[derive(Module, Debug)]
pub struct Head {
    norm: LayerNorm,
    scores: Linear,
}

impl GptConfig {
    pub(super) fn embed(&self, device: &Device) -> Embed {
        let d = self.d_model;
        self.rounded(Embed {
            token: EmbeddingConfig::new(self.vocab, d).with_initializer(SMALL).init(device),
            position: Embedding { weight: Param::from_tensor(waves(self.seq, d, device)) },
        })
    }

    pub(super) fn head(&self, device: &Device) -> Head {
        let d = self.d_model;
        self.rounded(Head {
            norm: LayerNormConfig::new(d).init(device),
            scores: LinearConfig::new(d, self.vocab).with_initializer(SMALL).init(device),
        })
    }

    pub(super) fn block(&self, device: &Device) -> Block {
        let d = self.d_model;
        let linear = |from, to| LinearConfig::new(from, to).with_initializer(SMALL).init(device);
        self.rounded(Block {
            norm_attention: LayerNormConfig::new(d).init(device),
            query_key_value: linear(d, 3 * d),
            project: linear(d, d),
            norm_mlp: LayerNormConfig::new(d).init(device),
            up: linear(d, 4 * d),
            down: linear(4 * d, d),
            heads: self.heads,
        })
    }

    fn rounded<M: Module>(&self, layer: M) -> M {
        if self.bf16 { layer.map(&mut Round::default()) } else { layer }
    }
}

/// The usual small normal initial values of GPT-2.
const SMALL: burn::nn::Initializer = burn::nn::Initializer::Normal { mean: 0.0, std: 0.02 };

/// Positions start as the waves of Vaswani et al. (2017, section 3.5), with the size of the other initial values,
/// and are trained from there. Among waves, a shift by one position is a rotation, so attention finds the preceding
/// bytes sooner than among random positions.
fn waves(seq: usize, d: usize, device: &Device) -> Tensor<2> {
    let value = |at: usize, i: usize| {
        let angle = at as f64 / 10_000f64.powf((i / 2 * 2) as f64 / d as f64);
        let wave = if i.is_multiple_of(2) { angle.sin() } else { angle.cos() };
        (wave * 0.02 * std::f64::consts::SQRT_2) as f32
    };
    let values: Vec<f32> = (0..seq).flat_map(|at| (0..d).map(move |i| value(at, i))).collect();
    Tensor::from_data(TensorData::new(values, [seq, d]), device)
}

impl Head {
    pub(super) fn forward(&self, hidden: Tensor<3>) -> Tensor<3> {
        self.scores.forward(normed(&self.norm, hidden))
    }
}

impl Embed {
    pub(super) fn forward(&self, tokens: Tensor<2, Int>, start: usize) -> Tensor<3> {
        let [_, seq] = tokens.dims();
        let positions = start as i64..(start + seq) as i64;
        let positions = Tensor::<1, Int>::arange(positions, &tokens.device()).unsqueeze::<2>();
        self.token.forward(tokens) + self.position.forward(positions)
    }
}

impl Block {
    pub(super) fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [query, key, value] = self.parts(normed(&self.norm_attention, x.clone()));
        self.mixed(x + self.attention(query, key, value))
    }

    pub(super) fn forward_cached(&self, x: Tensor<3>, cache: &mut LayerCache) -> Result<Tensor<3>, CacheError> {
        let [query, key, value] = self.parts(normed(&self.norm_attention, x.clone()));
        let (key, value) = cache.extend(key, value)?;
        Ok(self.mixed(x + self.attention(query, key, value)))
    }

    fn mixed(&self, x: Tensor<3>) -> Tensor<3> {
        let wide = gelu(self.up.forward(normed(&self.norm_mlp, x.clone())));
        x + self.down.forward(wide)
    }

    /// Queries, keys and values `[batch, heads, seq, width]`.
    fn parts(&self, x: Tensor<3>) -> [Tensor<4>; 3] {
        let [batch, seq, d] = x.dims();
        let head = d / self.heads;
        let split = |part: Tensor<3>| part.reshape([batch, seq, self.heads, head]).swap_dims(1, 2);
        let parts = self.query_key_value.forward(x).chunk(3, 2);
        let [query, key, value] = <[Tensor<3>; 3]>::try_from(parts).expect("three equal chunks of three widths");
        [split(query), split(key), split(value)]
    }

    /// Causal self-attention of a sequence's last tokens to all of it.
    fn attention(&self, query: Tensor<4>, key: Tensor<4>, value: Tensor<4>) -> Tensor<3> {
        let ([batch, heads, seq, head], [_, _, all, _]) = (query.dims(), key.dims());
        let future = Tensor::<2, Bool>::tril_mask([seq, all], (all - seq) as i64, &query.device());
        let own = FloatDType::from(query.dtype());
        let scores = wide(query.matmul(key.swap_dims(2, 3))).div_scalar((head as f64).sqrt());
        let scores = scores.mask_fill(future.unsqueeze::<4>(), -1.0e9);
        let mixed = softmax(scores, 3).cast(own).matmul(value);
        self.project.forward(mixed.swap_dims(1, 2).reshape([batch, seq, heads * head]))
    }
}

/// A precision for this model: half-precision parameters, except those of norms.
pub fn precision(half: Precision) -> Precision {
    half.keep(ParamGroup::from_predicate("norm"))
}

/// Rounds parameters to bf16, except those of norms. Gradients arrive at the parameters that were rounded.
#[derive(Default, Debug)]
pub struct Round {
    path: Vec<String>,
}

impl ModuleMapper for Round {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.path.iter().any(|name| name.contains("norm")) {
            true => param,
            false => param.map(|value| value.cast(FloatDType::BF16)),
        }
    }
}

/// The tensor in f32 if it is half precision.
pub fn wide<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    if matches!(x.dtype(), DType::F16 | DType::BF16) { x.cast(FloatDType::F32) } else { x }
}

/// A norm in the type of its own parameters.
fn normed(norm: &LayerNorm, x: Tensor<3>) -> Tensor<3> {
    let own = x.dtype();
    norm.forward(x.cast(FloatDType::from(norm.gamma.dtype()))).cast(FloatDType::from(own))
}
