//! A Llama as a list of layers, whose parameters have the names that Hugging Face's `transformers` gives them.
//!
//! Pre-norm blocks with grouped-query attention, rotary positions and a gated SiLU; the head is a matrix of its own, or
//! the transposed embedding (Touvron et al., "Llama 2", 2023). One list trains and generates: blocks read where a
//! microbatch continues (`place`), which is `None` unless keys and values are cached.
//!
//! A model with half-precision parameters computes norms, scores and the loss in f32, as `transformers` does.

use crate::config::Llama;
use crate::rotary::{Rotary, turned};
use burn::module::{Lora, Module, Param, ParamGroup};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::tensor::activation::{silu, softmax};
use burn::tensor::{Bool, Device, FloatDType, Tensor};
use burn_pipeline::layers::{Layer, LayerContext, Model, Sequential};
use burn_pipeline::train::SharedParameter;
use burn_pipeline_moe::cache::{CachePlace, KeyValueCache, LayerCache};
use pipeline_examples::gpt::{cross_entropy, wide};

/// The extra with the place of a microbatch in the cache.
pub const PLACE: &str = "place";

/// Adapters, and the projections that get them.
#[derive(Debug, Clone, PartialEq)]
pub struct Tuning {
    /// The rank of the adapters.
    pub rank: usize,
    /// The scale of the adapters times their rank.
    pub alpha: f64,
    /// The names of the projections, such as `q_proj`.
    pub targets: Vec<String>,
    /// The seed of their first values.
    pub seed: u64,
}

/// Grouped-query attention: the projections of queries, keys, values and output.
#[derive(Module, Debug)]
struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
}

/// A gated feed-forward layer.
#[derive(Module, Debug)]
struct Mlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

#[derive(Module, Debug)]
struct Block {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: Mlp,
    heads: usize,
    kv_heads: usize,
    #[module(skip)]
    rotary: Rotary,
    #[module(skip)]
    cache: KeyValueCache,
}

impl Llama {
    /// The model. With adapters, its weights are frozen, and adapters are trained in f32; without, all of it is
    /// trained. With `half`, matrices are bf16 by themselves, without masters.
    pub fn model(&self, tuning: Option<&Tuning>, half: bool) -> Model {
        let own = Weights { llama: self.clone(), frozen: tuning.is_some(), half };
        let (embedding, blocks, norm, head, tuning) = (own.clone(), own.clone(), own.clone(), own, tuning.cloned());
        let seed = tuning.as_ref().map_or(0, |tuning| tuning.seed);
        let block = move |at: &LayerContext| match &tuning {
            None => blocks.block(&at.device),
            Some(tuning) => blocks.block(&at.device).apply_lora(tuning.lora()),
        };
        let list = Sequential::new()
            .then(Layer::new("model.embed_tokens", move |at| embedding.embedding(&at.device), Embedding::forward))
            .repeat(self.blocks, Layer::new("model.layers", block, Block::forward).extras([PLACE]))
            .then(Layer::new("model.norm", move |at| norm.held(norm.norm(&at.device)), normed))
            .seed(seed);
        match self.tied {
            false => {
                list.then(Layer::new("lm_head", move |at| head.head(&at.device), Linear::forward)).loss(cross_entropy)
            }
            true => {
                let scores = |head: &Embedding, x: Tensor<3>| x.matmul(head.weight.val().transpose().unsqueeze());
                list.then(Layer::new("lm_head", move |at| head.embedding(&at.device), scores)).loss(cross_entropy)
            }
        }
    }

    /// The weights that two layers hold.
    pub fn shared(&self) -> Option<SharedParameter> {
        let embedding = || SharedParameter::new("embedding").at("model.embed_tokens.weight").at("lm_head.weight");
        self.tied.then(embedding)
    }
}

impl Tuning {
    fn lora(&self) -> Lora {
        let targets = self.targets.iter().map(|target| format!("{target}.weight")).collect();
        let lora = Lora::new(self.rank, self.alpha).set_dtype(FloatDType::F32);
        lora.set_param_group(ParamGroup::from_any_predicates(targets))
    }
}

/// How layers are made.
#[derive(Clone)]
struct Weights {
    llama: Llama,
    frozen: bool,
    half: bool,
}

impl Weights {
    fn held<M: Module>(&self, layer: M) -> M {
        if self.frozen { layer.no_grad() } else { layer }
    }

    fn rounded<const D: usize>(&self, weight: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.half { weight.map(|weight| weight.cast(FloatDType::BF16)) } else { weight }
    }

    fn linear(&self, from: usize, to: usize, bias: bool, device: &Device) -> Linear {
        let Linear { weight, bias } = LinearConfig::new(from, to).with_bias(bias).init(device);
        Linear { weight: self.rounded(weight), bias: bias.map(|bias| self.rounded(bias)) }
    }

    fn embedding(&self, device: &Device) -> Embedding {
        let embedding: Embedding = EmbeddingConfig::new(self.llama.vocab, self.llama.width).init(device);
        self.held(Embedding { weight: self.rounded(embedding.weight) })
    }

    fn norm(&self, device: &Device) -> RmsNorm {
        RmsNormConfig::new(self.llama.width).with_epsilon(self.llama.epsilon).init(device)
    }

    fn head(&self, device: &Device) -> Linear {
        self.held(self.linear(self.llama.width, self.llama.vocab, false, device))
    }

    fn block(&self, device: &Device) -> Block {
        let llama = &self.llama;
        let attention = |from, to| self.linear(from, to, llama.attention_bias, device);
        let mlp = |from, to| self.linear(from, to, llama.mlp_bias, device);
        let (queries, keys) = (llama.heads * llama.head, llama.kv_heads * llama.head);
        Block {
            input_layernorm: self.norm(device),
            self_attn: Attention {
                q_proj: attention(llama.width, queries),
                k_proj: attention(llama.width, keys),
                v_proj: attention(llama.width, keys),
                o_proj: attention(queries, llama.width),
            },
            post_attention_layernorm: self.norm(device),
            mlp: Mlp {
                gate_proj: mlp(llama.width, llama.inner),
                up_proj: mlp(llama.width, llama.inner),
                down_proj: mlp(llama.inner, llama.width),
            },
            heads: llama.heads,
            kv_heads: llama.kv_heads,
            rotary: llama.rotary.clone(),
            cache: KeyValueCache::new(),
        }
    }
}

/// A norm in f32; the result has the type of its input.
fn normed(norm: &RmsNorm, x: Tensor<3>) -> Tensor<3> {
    let own = FloatDType::from(x.dtype());
    norm.forward(wide(x)).cast(own)
}

impl Block {
    fn forward(&self, (x, place): (Tensor<3>, Option<CachePlace>)) -> Tensor<3> {
        let Some(place) = place else { return self.starting_at(x, 0, None) };
        let run = |caches: &mut [LayerCache]| Ok(self.starting_at(x, place.start, Some(&mut caches[0])));
        self.cache.run(place, 1, run).unwrap_or_else(|error| panic!("{error}"))
    }

    /// `start` tokens came before `x`; the cache has their keys and values.
    fn starting_at(&self, x: Tensor<3>, start: usize, cache: Option<&mut LayerCache>) -> Tensor<3> {
        let x = x.clone() + self.attended(normed(&self.input_layernorm, x), start, cache);
        x.clone() + self.mlp.forward(normed(&self.post_attention_layernorm, x))
    }

    fn attended(&self, x: Tensor<3>, start: usize, cache: Option<&mut LayerCache>) -> Tensor<3> {
        let ([batch, seq, _], device, own) = (x.dims(), x.device(), &self.self_attn);
        let split = |x: Tensor<3>, heads: usize| {
            let head = x.dims()[2] / heads;
            x.reshape([batch, seq, heads, head]).swap_dims(1, 2)
        };
        let angles = self.rotary.at(start, seq, &device).map(|x| x.cast(FloatDType::from(own.q_proj.weight.dtype())));
        let query = turned(split(own.q_proj.forward(x.clone()), self.heads), &angles);
        let mut key = turned(split(own.k_proj.forward(x.clone()), self.kv_heads), &angles);
        let mut value = split(own.v_proj.forward(x), self.kv_heads);
        if let Some(cache) = cache {
            (key, value) = cache.extend(key, value).unwrap_or_else(|error| panic!("{error}"));
        }
        own.o_proj.forward(self.mixed(query, key, value))
    }

    /// The attention of queries `[batch, heads, seq, head]` to keys and values, which groups of heads share.
    fn mixed(&self, query: Tensor<4>, key: Tensor<4>, value: Tensor<4>) -> Tensor<3> {
        let ([batch, heads, seq, head], all) = (query.dims(), key.dims()[2]);
        let (own, device) = (FloatDType::from(query.dtype()), query.device());
        let shared = |x: Tensor<4>| {
            let x = x.unsqueeze_dim::<5>(2).expand([batch, self.kv_heads, heads / self.kv_heads, all, head]);
            x.reshape([batch, heads, all, head])
        };
        let later = Tensor::<2, Bool>::tril_mask([seq, all], (all - seq) as i64, &device).unsqueeze::<4>();
        let scores = wide(query.matmul(shared(key).swap_dims(2, 3))) / (head as f64).sqrt();
        let scores = softmax(scores.mask_fill(later.expand([batch, heads, seq, all]), -1e9), 3).cast(own);
        scores.matmul(shared(value)).swap_dims(1, 2).reshape([batch, seq, heads * head])
    }
}

impl Mlp {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        self.down_proj.forward(silu(self.gate_proj.forward(x.clone())) * self.up_proj.forward(x))
    }
}
