//! Runs a part of the mixture-of-experts model: one module type serves every stage, as in [`gpt`](crate::gpt).
//!
//! Besides hidden states, one row of numbers per layer goes downstream (auxiliary losses, loads), which the loss
//! passes to the runtime; see [`auxiliary`](burn_pipeline_moe::auxiliary).
//!
//! 1. The first stage embeds tokens, and adds the parts of [`enrich`](crate::moe::enrich).
//! 2. Every stage runs its blocks: each has its window, with or without rotary positions. The relation bias is one
//!    table, of which every stage holds a copy.
//! 3. The last stage scores the next token and, with modules of multi-token prediction, those after it. These
//!    modules read the tokens as side data, and embed them with a copy of the first stage's table.
//! 4. After a step, the bias of each router changes according to the loads of all microbatches; see
//!    [`balance`](burn_pipeline_moe::balance).

use crate::gpt::cross_entropy;
use crate::moe::enrich::{DynamicTanh, NGramHash, RelationBias};
use crate::moe::signal::{
    DOCUMENTS, Hidden, MoeExtras, MoeSignal, PLATFORM, RELATIONS, STRUCTURE, Scores, Sides, TOKENS,
};
use burn::module::{Module, Param};
use burn::nn::{Embedding, LayerNorm, Linear};
use burn::tensor::{DType, Device, Int, Tensor};
use burn_pipeline::ops::DeferredForward;
use burn_pipeline::stage::{LOSS_SEED, Loss, Stage};
use burn_pipeline::tensor_parallel::TensorGroup;
use burn_pipeline_moe::auxiliary::{AuxiliaryLosses, observation_rows};
use burn_pipeline_moe::balance::loads;
use burn_pipeline_moe::extras::{StageExtras, StageExtrasError};
use burn_pipeline_moe::layers::{AttentionContext, Block, LayerAuxiliary, MultiTokenPrediction, predict_ahead};

#[derive(Module, Debug)]
pub(crate) struct Embed {
    pub(crate) token: Embedding,
    pub(crate) position: Option<Param<Tensor<2>>>,
    pub(crate) ngram: Option<NGramHash>,
    pub(crate) structure: Option<Embedding>,
    pub(crate) platform: Option<Embedding>,
    pub(crate) squash: Option<DynamicTanh>,
    /// The factor of token embeddings.
    pub(crate) scale: f64,
}

/// Predicts tokens after the next one.
#[derive(Module, Debug)]
pub(crate) struct Ahead {
    /// A copy of the first stage's table, if that is another stage.
    pub(crate) token: Option<Embedding>,
    pub(crate) modules: Vec<MultiTokenPrediction>,
}

#[derive(Module, Debug)]
pub(crate) struct Head {
    pub(crate) norm: LayerNorm,
    pub(crate) scores: Linear,
}

/// A contiguous part of the model.
#[derive(Module, Debug)]
pub struct MoeGptPart {
    pub(crate) embed: Option<Embed>,
    pub(crate) relation: Option<RelationBias>,
    pub(crate) blocks: Vec<Block>,
    pub(crate) ahead: Option<Ahead>,
    pub(crate) head: Option<Head>,
    pub(crate) experts: usize,
    pub(crate) injects: bool,
    /// The index of its first block in the model.
    pub(crate) first: usize,
    /// How much the experts' bias changes after each step.
    pub(crate) bias_rate: f64,
    #[module(skip)]
    pub(crate) losses: AuxiliaryLosses,
}

/// The mean cross-entropy of the next token, in nats, plus `ahead_weight` times the mean of those of the tokens
/// after it. Reports the rows of all layers and each of these losses as observed.
///
/// Each is a mean over the samples' tokens, so microbatches and accumulated batches weight all of them equally.
pub fn next_token_loss(output: MoeSignal, target: Tensor<2, Int>, ahead_weight: f64) -> Loss {
    let MoeSignal::Scores(scores) = output else { panic!("the last stage must output scores; does it have a head?") };
    let Scores { next, ahead, observed } = scores;
    let (next, ahead) = cross_entropies(next, ahead, target);
    // Loads are counts: a half-precision loss must not round them.
    let losses = [next.clone()].into_iter().chain(ahead.clone()).map(|loss| loss.detach().cast(DType::F32));
    let rows = observed.map(|rows| rows.flatten::<1>(0, 1).cast(DType::F32));
    let observed = Tensor::cat(rows.into_iter().chain(losses).collect(), 0);
    Loss::from(joint_loss(next, ahead, ahead_weight)).observing(observed)
}

/// The loss of the next token, plus `ahead_weight` times the mean of the others.
pub fn joint_loss(next: Tensor<1>, ahead: Vec<Tensor<1>>, ahead_weight: f64) -> Tensor<1> {
    let share = ahead_weight / ahead.len().max(1) as f64;
    match ahead.into_iter().reduce(|a, b| a + b) {
        Some(ahead) => next + ahead.mul_scalar(share),
        None => next,
    }
}

/// The mean cross-entropies of the next token's scores and of those of the tokens after it.
pub fn cross_entropies(next: Tensor<3>, ahead: Vec<Tensor<3>>, target: Tensor<2, Int>) -> (Tensor<1>, Vec<Tensor<1>>) {
    let of = |(scores, k): (Tensor<3>, usize)| {
        let [_, seq] = target.dims();
        cross_entropy(scores, target.clone().narrow(1, k, seq - k))
    };
    let ahead = ahead.into_iter().zip(1..).map(of).collect();
    (cross_entropy(next, target), ahead)
}

/// Tokens, structure ids and platforms.
pub(crate) type EmbedInput = (Tensor<2, Int>, (Option<Tensor<2, Int>>, Option<Tensor<1, Int>>));

impl Embed {
    fn forward(&self, tokens: Tensor<2, Int>, sides: &Sides) -> Tensor<3> {
        self.listed((tokens, (sides.structure.clone(), sides.platform.clone())))
    }

    /// As a layer of a list.
    pub(crate) fn listed(&self, (tokens, (structure, platform)): EmbedInput) -> Tensor<3> {
        let [_, seq] = tokens.dims();
        let mut x = self.token.forward_deferred(tokens.clone());
        if self.scale != 1.0 {
            x = x.mul_scalar(self.scale);
        }
        if let Some(position) = &self.position {
            x = x + position.val().narrow(0, 0, seq).unsqueeze::<3>();
        }
        if let Some(ngram) = &self.ngram {
            x = x + ngram.forward(&tokens);
        }
        if let (Some(table), Some(ids)) = (&self.structure, structure) {
            x = x + table.forward_deferred(ids);
        }
        if let (Some(table), Some(ids)) = (&self.platform, platform) {
            x = x + table.forward_deferred(ids.unsqueeze_dim(1));
        }
        match &self.squash {
            Some(squash) => squash.forward(x),
            None => x,
        }
    }
}

impl Head {
    pub(crate) fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        self.scores.forward_deferred(self.norm.forward(x))
    }
}

impl Ahead {
    /// The modules' hidden states, and what their routers reported. The table is its own copy, or the first stage's.
    pub(crate) fn forward(
        &self,
        first: Option<&Embedding>,
        x: Tensor<3>,
        tokens: Option<&Tensor<2, Int>>,
        context: &AttentionContext,
    ) -> (Vec<Tensor<3>>, Vec<LayerAuxiliary>) {
        let Some((table, tokens)) = self.token.as_ref().or(first).zip(tokens) else { return Default::default() };
        let embed = |tokens| table.forward_deferred(tokens);
        predict_ahead(&self.modules, x, tokens, embed, context).into_iter().unzip()
    }

    pub(crate) fn cut(self, group: &TensorGroup, replicas: &TensorGroup) -> Self {
        let cut = |module: MultiTokenPrediction| module.cut(group).expert_parallel(replicas);
        Self { modules: self.modules.into_iter().map(cut).collect(), ..self }
    }

    pub(crate) fn with_updated_biases(self, loads: &[Vec<f64>], rate: f64) -> Self {
        let modules = self.modules.into_iter().zip(loads);
        Self { modules: modules.map(|(module, load)| module.with_updated_bias(load, rate)).collect(), ..self }
    }

    pub(crate) fn skip_capture(&self) -> Option<&'static str> {
        self.modules.iter().find_map(MultiTokenPrediction::skip_capture)
    }
}

impl MoeGptPart {
    fn embed(&self, tokens: Tensor<2, Int>, sides: &Sides) -> Tensor<3> {
        match &self.embed {
            Some(embed) => embed.forward(tokens, sides),
            None => panic!("a stage without an embedding got tokens; only the first one has it"),
        }
    }

    /// The side data that this part reads, in the order of [`Stage::extras`].
    fn sides(&self, mut side: StageExtras) -> Result<Sides, StageExtrasError> {
        let documents = side.take(DOCUMENTS)?;
        let relations = self.relation.is_some().then(|| side.take(RELATIONS)).transpose()?;
        let structure = self.has(|embed| &embed.structure).then(|| side.take(STRUCTURE)).transpose()?;
        let platform = self.has(|embed| &embed.platform).then(|| side.take(PLATFORM)).transpose()?;
        let tokens = self.ahead.is_some().then(|| side.take(TOKENS)).transpose()?;
        Ok(Sides { documents, relations, structure, platform, tokens })
    }

    fn has(&self, table: fn(&Embed) -> &Option<Embedding>) -> bool {
        self.embed.as_ref().is_some_and(|embed| table(embed).is_some())
    }

    fn context(&self, sides: &Sides) -> AttentionContext {
        let bias = self.relation.as_ref().zip(sides.relations.clone()).map(|(bias, related)| bias.forward(related));
        AttentionContext::new(sides.documents.clone()).with_bias(bias)
    }

    /// Runs the blocks and, after the last one, the modules of tokens ahead. Returns their hidden states and what
    /// all routers reported.
    fn run(&self, x: Tensor<3>, sides: &Sides) -> (Tensor<3>, Vec<Tensor<3>>, Vec<LayerAuxiliary>) {
        let context = self.context(sides);
        let mut left = Vec::with_capacity(self.blocks.len());
        let x = self.blocks.iter().fold(x, |x, block| {
            let (x, auxiliary) = block.forward(x, &context);
            left.push(auxiliary);
            x
        });
        let Some(ahead) = &self.ahead else { return (x, Vec::new(), left) };
        let first = self.embed.as_ref().map(|embed| &embed.token);
        let (hidden, of_ahead) = ahead.forward(first, x.clone(), sides.tokens.as_ref(), &context);
        left.extend(of_ahead);
        (x, hidden, left)
    }

    /// The scores of a whole model and what its routers reported, without injection, for a plain loop to add up.
    pub fn whole(&self, tokens: Tensor<2, Int>, sides: &Sides) -> (Scores, Vec<LayerAuxiliary>) {
        let (x, ahead, left) = self.run(self.embed(tokens, sides), sides);
        let ahead = ahead.into_iter().map(|x| self.scores(x)).collect();
        (Scores { next: self.scores(x), ahead, observed: None }, left)
    }

    fn scores(&self, x: Tensor<3>) -> Tensor<3> {
        match &self.head {
            Some(head) => head.forward(x),
            None => x,
        }
    }
}

impl Stage for MoeGptPart {
    type Input = MoeSignal;
    type Extra = MoeExtras;
    type Output = MoeSignal;

    fn extras(&self) -> Vec<&'static str> {
        let named = [
            (true, LOSS_SEED),
            (true, DOCUMENTS),
            (self.relation.is_some(), RELATIONS),
            (self.has(|embed| &embed.structure), STRUCTURE),
            (self.has(|embed| &embed.platform), PLATFORM),
            (self.ahead.is_some(), TOKENS),
        ];
        named.into_iter().filter_map(|(reads, name)| reads.then_some(name)).collect()
    }

    fn forward(&self, input: MoeSignal, extra: MoeExtras) -> MoeSignal {
        let sides = self.sides(extra.side).unwrap_or_else(|error| panic!("{error}"));
        let (x, upstream) = match input {
            MoeSignal::Tokens(tokens) => (self.embed(tokens, &sides), None),
            MoeSignal::Hidden(hidden) => (hidden.x, hidden.observed),
            MoeSignal::Scores(_) => panic!("a stage got scores; only the last one outputs them"),
        };
        let device: Device = x.device();
        let (x, ahead, left) = self.run(x, &sides);
        let observed = observation_rows(upstream, &left, self.experts, &device);
        let x = if self.injects { self.losses.inject(x, &left, extra.seed) } else { x };
        if self.head.is_none() {
            return MoeSignal::Hidden(Hidden { x, bias: None, observed });
        }
        let ahead = ahead.into_iter().map(|x| self.scores(x)).collect();
        MoeSignal::Scores(Scores { next: self.scores(x), ahead, observed })
    }

    fn after_step(mut self, observed: &[Vec<f64>]) -> Self {
        let count = self.blocks.len() + self.ahead.as_ref().map_or(0, |ahead| ahead.modules.len());
        let (loads, rate) = (loads(observed, self.experts, self.first..self.first + count), self.bias_rate);
        let (of_blocks, of_ahead) = loads.split_at(self.blocks.len());
        self.blocks =
            self.blocks.into_iter().zip(of_blocks).map(|(block, load)| block.with_updated_bias(load, rate)).collect();
        self.ahead = self.ahead.map(|ahead| ahead.with_updated_biases(of_ahead, rate));
        self
    }

    fn skip_capture(&self) -> Option<&'static str> {
        self.blocks.iter().find_map(Block::skip_capture).or_else(|| self.ahead.as_ref()?.skip_capture())
    }
}
