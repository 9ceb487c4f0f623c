//! One small model for every feature: as Burn's layers on one device, and as stages that tensor-parallel groups,
//! vocabulary parallelism, skips and tied weights can cut.

use crate::run::Run;
use burn::module::{Module, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{
    Embedding, EmbeddingConfig, Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig, SwiGlu, SwiGluConfig,
};
use burn::tensor::{Device, FloatDType, Int, Tensor};
use burn_pipeline::nn::{ColumnLinear, GatedFeedForward, VocabEmbedding, vocab_cross_entropy};
use burn_pipeline::payload::Skips;
use burn_pipeline::stage::{Loss, Names, Stage, StageBox};
use burn_pipeline::tensor_parallel::TensorGroup;
use burn_pipeline::{StageContext, Vocabulary, init_seeded};
use pipeline_examples::gpt::Round;

const WORDS: usize = 12;
const WIDTH: usize = 6;
const SEQUENCE: usize = 3;
pub(crate) const BLOCKS: usize = 4;
const INIT: Initializer = Initializer::Normal { mean: 0.0, std: 0.4 };

fn token(device: &Device) -> Embedding {
    init_seeded(1, device, |device| EmbeddingConfig::new(WORDS, WIDTH).with_initializer(INIT).init(device))
}

fn scores(device: &Device) -> Linear {
    let head = LinearConfig::new(WIDTH, WORDS).with_bias(false).with_initializer(INIT);
    init_seeded(2, device, |device| head.init(device))
}

fn layers(place: usize, frozen: bool, device: &Device) -> (LayerNorm, SwiGlu, Linear) {
    let layers = init_seeded(10 + place as u64, device, |device| {
        let gated = SwiGluConfig::new(WIDTH, 8).with_bias(true).with_initializer(INIT).init(device);
        (
            LayerNormConfig::new(WIDTH).init(device),
            gated,
            LinearConfig::new(8, WIDTH).with_initializer(INIT).init(device),
        )
    });
    if frozen && place == 1 { layers.no_grad() } else { layers }
}

/// A norm in the type of its parameters.
fn normed(norm: &LayerNorm, x: Tensor<3>) -> Tensor<3> {
    let own = FloatDType::from(x.dtype());
    norm.forward(x.cast(FloatDType::from(norm.gamma.val().dtype()))).cast(own)
}

/// Every block's input, moved.
fn shifted(x: Tensor<3>, shift: &Tensor<3>) -> Tensor<3> {
    let own = FloatDType::from(x.dtype());
    x + shift.clone().cast(own)
}

/// Zeros, one for each token: an extra that every block adds, so that it has a gradient.
pub(crate) fn shift(samples: usize, device: &Device) -> Tensor<3> {
    Tensor::zeros([samples, SEQUENCE, 1], device)
}

/// The replacement for the first block's norm.
pub(crate) fn other_scale(device: &Device) -> Param<Tensor<1>> {
    Initializer::Constant { value: 0.5 }.init([WIDTH], device)
}

/// Tokens and targets `[samples, sequence]`, different in each batch.
pub(crate) fn data(batch: usize, samples: usize) -> (Tensor<2, Int>, Tensor<2, Int>) {
    let first = (batch * samples * SEQUENCE) as i64;
    let numbers = || Tensor::<1, Int>::arange(first..first + (samples * SEQUENCE) as i64, &Device::flex());
    let shaped = |ids: Tensor<1, Int>| ids.remainder_scalar(WORDS as i64).reshape([samples, SEQUENCE]);
    (shaped(numbers().mul_scalar(7)), shaped(numbers().mul_scalar(11).add_scalar(3)))
}

#[derive(Module, Debug)]
pub(crate) struct PlainBlock {
    pub(crate) norm: LayerNorm,
    gated: SwiGlu,
    down: Linear,
}

#[derive(Module, Debug)]
pub(crate) struct Plain {
    token: Embedding,
    pub(crate) blocks: Vec<PlainBlock>,
    /// If `None`, the embedding's matrix scores the words.
    scores: Option<Linear>,
}

impl Plain {
    pub(crate) fn new(run: &Run) -> Self {
        let device = Device::flex().autodiff();
        let block = |place| {
            let (norm, gated, down) = layers(place, run.frozen, &device);
            PlainBlock { norm, gated, down }
        };
        let blocks = (0..BLOCKS).map(block).collect();
        Self { token: token(&device), blocks, scores: (!run.tied).then(|| scores(&device)) }
    }

    /// The mean cross entropy. With a skip, the output of the first of its stages is also an input of the last one.
    pub(crate) fn loss(
        &self,
        run: &Run,
        (tokens, targets): (Tensor<2, Int>, Tensor<2, Int>),
        shift: &Tensor<3>,
    ) -> Tensor<1> {
        let [batch, seq] = tokens.dims();
        let each = BLOCKS / run.stages();
        let copies = if run.half { self.clone().map(&mut Round::default()) } else { self.clone() };
        let (mut x, mut skipped) = (copies.token.forward(tokens), None);
        for (place, PlainBlock { norm, gated, down }) in copies.blocks.iter().enumerate() {
            if place == BLOCKS - each
                && let Some(skipped) = skipped.take().filter(|_| run.skip)
            {
                x = x + skipped;
            }
            let moved = shifted(x, shift);
            x = moved.clone() + down.forward(gated.forward(normed(norm, moved)));
            if place + 1 == each {
                skipped = Some(x.clone());
            }
        }
        let scores = match &copies.scores {
            Some(scores) => scores.forward(x),
            None => x.matmul(copies.token.weight.val().transpose().unsqueeze()),
        };
        let scores = scores.cast(FloatDType::F32);
        let loss = CrossEntropyLossConfig::new().init(&scores.device());
        loss.forward(scores.reshape([batch * seq, WORDS]), targets.reshape([batch * seq]))
    }
}

#[derive(Module, Debug)]
pub(crate) struct Block {
    pub(crate) norm: LayerNorm,
    feed: GatedFeedForward,
}

#[derive(Module, Debug)]
pub(crate) struct Part {
    token: Option<VocabEmbedding>,
    pub(crate) blocks: Vec<Block>,
    scores: Option<ColumnLinear>,
    /// The embedding's matrix, on the last stage.
    tied: Option<Param<Tensor<2>>>,
    /// True if its output is also sent to the last stage.
    gives: bool,
    #[module(skip)]
    group: TensorGroup,
}

type Hidden = (Tensor<3>, Skips<Tensor<3>>);

impl Part {
    fn hidden(&self, (x, skipped): Hidden, shift: &Tensor<3>) -> Hidden {
        let x = skipped.0.into_iter().fold(x, |x, skipped| x + skipped);
        let block = |x, block: &Block| {
            let x = shifted(x, shift);
            x.clone() + block.feed.forward(normed(&block.norm, x))
        };
        let x = self.blocks.iter().fold(x, block);
        let given = if self.gives { vec![x.clone()] } else { Vec::new() };
        let y = match (&self.scores, &self.tied) {
            (Some(scores), _) => scores.forward(x),
            (None, Some(tied)) => self.group.copy_to(x).matmul(tied.val().transpose().unsqueeze()),
            (None, None) => x,
        };
        (y, Skips(given))
    }
}

/// The first stage, if it holds the whole embedding.
#[derive(Module, Debug)]
pub(crate) struct First {
    pub(crate) part: Part,
}

impl Stage for First {
    type Input = Tensor<2, Int>;
    type Extra = Tensor<3>;
    type Output = Hidden;

    fn extras(&self) -> Vec<&'static str> {
        vec!["shift"]
    }

    fn forward(&self, tokens: Tensor<2, Int>, shift: Tensor<3>) -> Hidden {
        let token = self.part.token.as_ref().unwrap();
        self.part.hidden((token.forward(tokens), Skips(Vec::new())), &shift)
    }
}

/// Every other stage.
#[derive(Module, Debug)]
pub(crate) struct Later {
    pub(crate) part: Part,
}

impl Stage for Later {
    type Input = Hidden;
    type Extra = Tensor<3>;
    type Output = Hidden;

    fn extras(&self) -> Vec<&'static str> {
        vec!["shift"]
    }

    fn forward(&self, x: Hidden, shift: Tensor<3>) -> Hidden {
        self.part.hidden(x, &shift)
    }
}

/// Builds a stage of a run.
pub(crate) fn stage(run: &Run, at: &StageContext) -> StageBox {
    let (places, device, group) = (at.layers(BLOCKS), &at.device, &at.group);
    let (own_embedding, own_head) = (at.is_first() && !run.vocabulary, at.is_last() && !run.vocabulary);
    let block = |place| {
        let (norm, gated, down) = layers(place, run.frozen, device);
        Block { norm, feed: GatedFeedForward::cut(gated, down, group) }
    };
    let part = Part {
        token: own_embedding.then(|| VocabEmbedding::cut(token(device), group)),
        blocks: places.clone().map(block).collect(),
        scores: (own_head && !run.tied).then(|| ColumnLinear::cut(scores(device), group)),
        tied: (own_head && run.tied).then(|| group.cut(token(device).weight, 0)),
        gives: run.skip && at.is_first(),
        group: group.clone(),
    };
    let names = Names::default().layers_from("part.blocks", places.start);
    let names = names.renamed(|name| name.trim_start_matches("part.").replace("feed.", ""));
    let (weighted, group) = (run.weighted, group.clone());
    let loss = move |(scores, _): Hidden, targets: Tensor<2, Int>| {
        let [batch, seq, words] = scores.dims();
        let scores = scores.cast(FloatDType::F32);
        let mean = vocab_cross_entropy(scores.reshape([batch * seq, words]), targets.reshape([batch * seq]), &group);
        match weighted {
            true => Loss::weighted(mean.mul_scalar((batch * seq) as f64), (batch * seq) as f64),
            false => Loss::from(mean),
        }
    };
    let stage = match (own_embedding, own_head) {
        (true, true) => StageBox::with_loss(First { part }, loss),
        (true, false) => StageBox::new(First { part }),
        (false, true) => StageBox::with_loss(Later { part }, loss),
        (false, false) => StageBox::new(Later { part }),
    };
    stage.named(names).recomputed(run.recompute)
}

/// The embedding and the head, to be split over all ranks.
pub(crate) fn vocabulary(run: &Run) -> Vocabulary {
    match run.tied {
        true => Vocabulary::new().tied("token", token),
        false => Vocabulary::new().embedding("token", token).head("scores", scores),
    }
}
