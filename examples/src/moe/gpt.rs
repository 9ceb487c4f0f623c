//! A byte-level GPT whose blocks are dense, have experts, or are mixtures of depths, as given by a pattern string.
//!
//! This file defines the model and the part of it that a stage holds; [`part`](crate::moe::part) runs it. Every
//! layer draws its initial values with its own seed, so the weights do not depend on the cut.
//! [`MoeGptConfig::shared`] lists the parameters that several stages hold copies of, for the pipeline's builder.

use crate::moe::enrich::{DynamicTanh, NGramHash, RelationBias, SMALL};
use crate::moe::part::{Ahead, Embed, Head, MoeGptPart, next_token_loss};
use crate::moe::signal::MoeSignal;
use burn::config::Config;
use burn::nn::{Embedding, EmbeddingConfig, LayerNormConfig, LinearConfig};
use burn::tensor::Device;
use burn_pipeline::cost::{Partition, PartitionError};
use burn_pipeline::stage::{Names, Stage, StageBox, init_seeded};
use burn_pipeline::tensor_parallel::TensorGroup;
use burn_pipeline::train::{SharedParameter, StageContext};
use burn_pipeline_moe::auxiliary::{AuxiliaryLosses, AuxiliaryWeights, LayerObservation, parse_rows};
use burn_pipeline_moe::layers::{
    AttentionConfig, Block, BlockConfig, BlockKind, MixtureOfExpertsConfig, MultiTokenPrediction, PatternError,
    parse_pattern,
};
use burn_pipeline_moe::router::{Capacity, Scoring};
use clap::ValueEnum;
use std::ops::Range;

/// The stages whose auxiliary losses reach their routers.
#[derive(Config, Debug, Copy, PartialEq, Eq, ValueEnum)]
pub enum Injection {
    /// All stages.
    All,
    /// Only the last stage's, as without injection: the main loss can only add losses of its own stage.
    LastStage,
    /// None.
    Nowhere,
}

impl Injection {
    /// Returns true if auxiliary losses reach the routers of this stage.
    pub(crate) fn reaches(self, stage: usize, stages: usize) -> bool {
        match self {
            Injection::All => true,
            Injection::LastStage => stage + 1 == stages,
            Injection::Nowhere => false,
        }
    }
}

/// The model's size and options.
#[derive(Config, Debug)]
pub struct MoeGptConfig {
    /// One letter per block: D dense, E experts, d and e the same as mixtures of depths.
    #[config(default = "String::from(\"DEDE\")")]
    pub pattern: String,
    /// The width of the hidden state.
    #[config(default = 64)]
    pub d_model: usize,
    /// The number of attention heads, which divides the width.
    #[config(default = 4)]
    pub heads: usize,
    /// The maximum sequence length.
    #[config(default = 64)]
    pub seq: usize,
    /// The number of distinct tokens.
    #[config(default = 256)]
    pub vocab: usize,
    /// The width inside an expert. Dense layers are as wide as the experts of one token together.
    #[config(default = 64)]
    pub d_hidden: usize,
    /// The number of experts to choose from.
    #[config(default = 8)]
    pub experts: usize,
    /// The number of experts per token.
    #[config(default = 2)]
    pub top_k: usize,
    /// The number of additional experts that every token goes to.
    #[config(default = 0)]
    pub shared: usize,
    /// The number of tokens that an expert accepts.
    #[config(default = "Capacity::Factor(1.5)")]
    pub capacity: Capacity,
    /// How logits become scores.
    #[config(default = "Scoring::Softmax")]
    pub scoring: Scoring,
    /// How much the experts' bias changes after each step, towards an even load (DeepSeek-V3: 0.001); no bias if 0.
    #[config(default = 0.0)]
    pub bias_rate: f64,
    /// The weights of auxiliary losses.
    #[config(default = "AuxiliaryWeights::new()")]
    pub auxiliary: AuxiliaryWeights,
    /// The stages whose auxiliary losses reach their routers.
    #[config(default = "Injection::All")]
    pub injection: Injection,
    /// The number of tokens that each block attends to, itself included, for the blocks in turn; 0 for all. If
    /// empty, all blocks attend to all.
    #[config(default = "Vec::new()")]
    pub windows: Vec<usize>,
    /// Multiply token embeddings by the square root of the width (Vaswani et al., 2017, section 3.4).
    #[config(default = false)]
    pub scale_embeddings: bool,
    /// Use rotary positions instead of learned ones.
    #[config(default = false)]
    pub rotary: bool,
    /// Blocks without rotary positions, counted from 0.
    #[config(default = "Vec::new()")]
    pub without_rotary: Vec<usize>,
    /// The rows of each table of hashed n-grams; 0 for none.
    #[config(default = 0)]
    pub ngram_buckets: usize,
    /// The number of distinct structure ids; 0 for no such embedding.
    #[config(default = 0)]
    pub structures: usize,
    /// The number of distinct platforms; 0 for no such embedding.
    #[config(default = 0)]
    pub platforms: usize,
    /// Squash embeddings with a [`DynamicTanh`].
    #[config(default = false)]
    pub squash: bool,
    /// The number of relations between tokens with an attention bias; 0 for no bias.
    #[config(default = 0)]
    pub relations: usize,
    /// One letter of the pattern for each token to predict after the next one.
    #[config(default = "String::new()")]
    pub ahead: String,
    /// The weight of these tokens' mean loss relative to the next one's (DeepSeek-V3: 0.3, later 0.1).
    #[config(default = 0.3)]
    pub ahead_weight: f64,
    /// Makes experts parallel over data-parallel replicas.
    #[config(default = false)]
    pub expert_parallel: bool,
    /// The blocks at which stages start, without the first; if empty, an even cut.
    #[config(default = "Vec::new()")]
    pub boundaries: Vec<usize>,
    /// The seed of the initial values.
    #[config(default = 0)]
    pub seed: u64,
}

/// Why there is no such model, or no such part of it.
#[derive(Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum MoeGptError {
    /// The pattern is invalid.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// The letters of the tokens ahead are invalid.
    #[error("tokens ahead: {0}")]
    Ahead(PatternError),
    /// The boundaries are invalid.
    #[error(transparent)]
    Boundaries(#[from] PartitionError),
    /// The cut has another number of stages than the plan.
    #[error("the model is cut into {cut} stages, and the plan has {stages}; give one boundary fewer than stages")]
    Stages { cut: usize, stages: usize },
}

burn_pipeline::debug_as_text!(MoeGptError);

/// The observations of the loss for one microbatch.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    /// The observation of each block, those of tokens ahead last.
    pub layers: Vec<LayerObservation>,
    /// The mean loss of the next token.
    pub next: f64,
    /// The mean losses of the tokens after it.
    pub ahead: Vec<f64>,
}

impl MoeGptConfig {
    /// The blocks of the whole model, those of tokens ahead last.
    ///
    /// # Errors
    /// Returns a [`MoeGptError`] if a pattern has an unknown letter, or the main one is empty.
    pub fn blocks(&self) -> Result<Vec<BlockKind>, MoeGptError> {
        Ok([parse_pattern(&self.pattern)?, self.ahead_blocks()?].concat())
    }

    /// The blocks of tokens ahead.
    pub(crate) fn ahead_blocks(&self) -> Result<Vec<BlockKind>, MoeGptError> {
        match &*self.ahead {
            "" => Ok(Vec::new()),
            ahead => parse_pattern(ahead).map_err(MoeGptError::Ahead),
        }
    }

    /// The auxiliary losses of the whole model.
    ///
    /// # Errors
    /// As [`MoeGptConfig::blocks`].
    pub fn losses(&self) -> Result<AuxiliaryLosses, MoeGptError> {
        Ok(AuxiliaryLosses::new(self.auxiliary, &self.blocks()?))
    }

    /// The configuration of a block. Those after the last are of tokens ahead.
    pub(crate) fn block_config(&self, block: usize) -> BlockConfig {
        let mixture = MixtureOfExpertsConfig::new(self.d_model, self.d_hidden, self.experts);
        let mixture = mixture.with_top_k(self.top_k).with_shared(self.shared).with_capacity(self.capacity);
        let mixture = mixture.with_expert_bias(self.bias_rate > 0.0);
        let window = if self.windows.is_empty() { 0 } else { self.windows[block % self.windows.len()] };
        let attention = AttentionConfig::new(self.d_model, self.heads)
            .with_window((window > 0).then_some(window))
            .with_rotary(self.rotary && !self.without_rotary.contains(&block));
        let d_dense = (self.top_k + self.shared) * self.d_hidden;
        BlockConfig::new(attention, d_dense, mixture.with_scoring(self.scoring))
    }

    /// The blocks that a stage holds.
    ///
    /// # Errors
    /// Returns a [`MoeGptError`] if the boundaries are invalid, or are for another number of stages (except for the
    /// whole model as one stage).
    pub fn layers(&self, at: &StageContext) -> Result<Range<usize>, MoeGptError> {
        let blocks = self.pattern.chars().count();
        if self.boundaries.is_empty() || at.stages == 1 {
            return Ok(at.layers(blocks));
        }
        let cut = Partition::from_boundaries(blocks, &self.boundaries)?;
        let (stages, of) = (at.stages, cut.stages());
        let range = cut.ranges().nth(at.index).filter(|_| stages == of);
        range.ok_or(MoeGptError::Stages { cut: of, stages })
    }

    /// The names of a stage's parameters in the whole model.
    ///
    /// # Errors
    /// As [`MoeGptConfig::layers`].
    pub fn names(&self, at: &StageContext) -> Result<Names, MoeGptError> {
        let names = Names::default().layers_from("blocks", self.layers(at)?.start);
        // The copy has the name of the first stage's table.
        Ok(names.renamed(|name| {
            name.strip_prefix("ahead.token.").map_or_else(|| name.to_owned(), |rest| format!("embed.token.{rest}"))
        }))
    }

    /// The parameters that several stages hold copies of.
    pub fn shared(&self) -> Vec<SharedParameter> {
        let token = SharedParameter::new("embedding").at("embed.token.weight").at("ahead.token.weight");
        let relation = SharedParameter::new("relation bias").at("relation.table");
        let declared = [(!self.ahead.is_empty(), token), (self.relations > 0, relation)];
        declared.into_iter().filter_map(|(there, parameter)| there.then_some(parameter)).collect()
    }

    /// Reads the numbers that the loss observed.
    pub fn read(&self, numbers: &[f64]) -> Observed {
        let losses = numbers.len().saturating_sub(1 + self.ahead.chars().count());
        let (rows, losses) = numbers.split_at(losses);
        let (next, ahead) = losses.split_first().map_or((f64::NAN, &[][..]), |(next, ahead)| (*next, ahead));
        Observed { layers: parse_rows(rows, self.experts), next, ahead: ahead.to_vec() }
    }

    /// The part of the model that a stage holds.
    ///
    /// # Errors
    /// As [`MoeGptConfig::blocks`] and [`MoeGptConfig::layers`].
    pub fn part(&self, at: &StageContext) -> Result<MoeGptPart, MoeGptError> {
        let (device, kinds, layers) = (&at.device, self.blocks()?, self.layers(at)?);
        let embed = at.is_first().then(|| self.embed_layer(device));
        let relation = self.relation_layer(device);
        let alone = TensorGroup::alone();
        let replicas = if self.expert_parallel { &at.replicas } else { &alone };
        let block =
            |layer: usize| self.block_layer(layer, kinds[layer], device).cut(&at.group).expert_parallel(replicas);
        let ahead_kinds = self.ahead_blocks()?;
        let ahead = (at.is_last() && !ahead_kinds.is_empty())
            .then(|| self.ahead_layer(&ahead_kinds, !at.is_first(), device).cut(&at.group, replicas));
        let head = at.is_last().then(|| self.head_layer(device));
        let injects = self.injection.reaches(at.index, at.stages);
        let (first, losses) = (layers.start, self.losses()?);
        let (blocks, experts, bias_rate) = (layers.map(block).collect(), self.experts, self.bias_rate);
        Ok(MoeGptPart { embed, relation, blocks, ahead, head, experts, injects, first, bias_rate, losses })
    }

    /// The seed of a layer: the embedding is 0, blocks follow from 1, and then the head.
    fn seed_of(&self, layer: usize) -> u64 {
        self.seed.wrapping_mul(1_000_003).wrapping_add(layer as u64)
    }

    fn after_blocks(&self) -> usize {
        self.pattern.chars().count() + 1
    }

    fn token_table(&self, device: &Device) -> Embedding {
        let make =
            |device: &Device| EmbeddingConfig::new(self.vocab, self.d_model).with_initializer(SMALL).init(device);
        init_seeded(self.seed_of(0), device, make)
    }

    pub(crate) fn block_layer(&self, block: usize, kind: BlockKind, device: &Device) -> Block {
        init_seeded(self.seed_of(block + 1), device, |device| self.block_config(block).init(kind, device))
    }

    pub(crate) fn relation_layer(&self, device: &Device) -> Option<RelationBias> {
        let make = |device: &Device| RelationBias::new(self.relations, self.heads, device);
        (self.relations > 0).then(|| init_seeded(self.seed_of(self.after_blocks() + 2), device, make))
    }

    /// The modules of tokens ahead, with a copy of the token table or without.
    pub(crate) fn ahead_layer(&self, kinds: &[BlockKind], copy: bool, device: &Device) -> Ahead {
        let module = |(place, &kind): (usize, &BlockKind)| {
            let config = self.block_config(place);
            let make = |device: &Device| MultiTokenPrediction::new(&config, kind, device);
            init_seeded(self.seed_of(place + 4), device, make)
        };
        let modules = (self.pattern.chars().count()..).zip(kinds).map(module).collect();
        Ahead { token: (copy && !kinds.is_empty()).then(|| self.token_table(device)), modules }
    }

    pub(crate) fn head_layer(&self, device: &Device) -> Head {
        init_seeded(self.seed_of(self.after_blocks()), device, |device| self.head(device))
    }

    pub(crate) fn embed_layer(&self, device: &Device) -> Embed {
        let (d, seed, enriched) = (self.d_model, self.seed_of(0), self.seed_of(self.after_blocks() + 1));
        let table = |rows: usize, device: &Device| {
            (rows > 0).then(|| EmbeddingConfig::new(rows, d).with_initializer(SMALL).init(device))
        };
        let (token, position) = init_seeded(seed, device, |device| {
            let token = EmbeddingConfig::new(self.vocab, d).with_initializer(SMALL).init(device);
            (token, (!self.rotary).then(|| SMALL.init([self.seq, d], device)))
        });
        init_seeded(enriched, device, |device| Embed {
            token: token.clone(),
            position: position.clone(),
            ngram: (self.ngram_buckets > 0).then(|| NGramHash::new(self.ngram_buckets, d, device)),
            structure: table(self.structures, device),
            platform: table(self.platforms, device),
            squash: self.squash.then(|| DynamicTanh::new(d, device)),
            scale: if self.scale_embeddings { (d as f64).sqrt() } else { 1.0 },
        })
    }

    fn head(&self, device: &Device) -> Head {
        Head {
            norm: LayerNormConfig::new(self.d_model).init(device),
            scores: LinearConfig::new(self.d_model, self.vocab).with_initializer(SMALL).init(device),
        }
    }

    /// A stage of the model, or of a wrapper around its part, with the loss on the last one.
    ///
    /// # Errors
    /// As [`MoeGptConfig::layers`].
    pub fn stage<M>(&self, part: M, at: &StageContext) -> Result<StageBox, MoeGptError>
    where
        M: Stage<Output = MoeSignal>,
    {
        let weight = self.ahead_weight;
        let stage = match at.is_last() {
            true => StageBox::with_loss(part, move |output, target| next_token_loss(output, target, weight)),
            false => StageBox::new(part),
        };
        Ok(stage.named(self.names(at)?))
    }
}
