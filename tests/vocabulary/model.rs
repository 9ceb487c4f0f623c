//! The same decoder as stages, between an embedding and a head that are spread or not.

use super::plain::{self, BLOCKS, Block, Trained, cross_entropy, data};
use burn::module::{Module, Param};
use burn::nn::{Embedding, LayerNorm, Linear};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::stage::{Names, Stage, StageBox};
use burn_pipeline::{Batch, Builder, Pipeline, Size, StageContext, Vocabulary};
use std::collections::BTreeMap;

/// What is spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spread {
    pub(crate) embedding: bool,
    pub(crate) head: bool,
    /// Is the head the embedding's matrix?
    pub(crate) tied: bool,
}

pub(crate) const BOTH: Spread = Spread { embedding: true, head: true, tied: false };
pub(crate) const EMBEDDING: Spread = Spread { embedding: true, head: false, tied: false };
pub(crate) const HEAD: Spread = Spread { embedding: false, head: true, tied: false };
pub(crate) const TIED: Spread = Spread { embedding: true, head: true, tied: true };
pub(crate) const NOTHING: Spread = Spread { embedding: false, head: false, tied: false };

#[derive(Module, Debug)]
struct Part {
    token: Option<Embedding>,
    position: Option<Param<Tensor<2>>>,
    blocks: Vec<Block>,
    norm: Option<LayerNorm>,
    scores: Option<Linear>,
    /// Does its forward panic?
    broken: bool,
}

impl Part {
    fn hidden(&self, x: Tensor<3>) -> Tensor<3> {
        assert!(!self.broken, "a broken forward");
        let x = match &self.position {
            Some(position) => x + position.val().unsqueeze::<3>(),
            None => x,
        };
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        let x = self.norm.as_ref().map_or(x.clone(), |norm| norm.forward(x));
        self.scores.as_ref().map_or(x.clone(), |scores| scores.forward(x))
    }
}

/// A stage that takes hidden states.
#[derive(Module, Debug)]
struct Hidden {
    part: Part,
}

impl Stage for Hidden {
    type Input = Tensor<3>;
    type Extra = ();
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, (): ()) -> Tensor<3> {
        self.part.hidden(x)
    }
}

/// A stage that takes tokens.
#[derive(Module, Debug)]
struct Tokens {
    part: Part,
}

impl Stage for Tokens {
    type Input = Tensor<2, Int>;
    type Extra = ();
    type Output = Tensor<3>;

    fn forward(&self, tokens: Tensor<2, Int>, (): ()) -> Tensor<3> {
        let token = self.part.token.as_ref().unwrap();
        self.part.hidden(token.forward(tokens))
    }
}

/// A stage, whose forward panics if it is `broken`.
pub(crate) fn stage_or_broken(spread: Spread, broken: Option<usize>, at: &StageContext) -> StageBox {
    let (layers, device) = (at.layers(BLOCKS), &at.device);
    let part = Part {
        token: (at.is_first() && !spread.embedding).then(|| plain::token(device)),
        position: at.is_first().then(|| plain::position(device)),
        blocks: layers.clone().map(|place| plain::block(place, device)).collect(),
        norm: at.is_last().then(|| plain::norm(device)),
        scores: (at.is_last() && !spread.head).then(|| plain::scores(device)),
        broken: broken == Some(at.index),
    };
    let names = Names::default().layers_from("part.blocks", layers.start);
    let names = names.renamed(|name| name.trim_start_matches("part.").to_owned());
    let stage = match (part.token.is_some(), part.scores.is_some()) {
        (true, true) => StageBox::with_loss(Tokens { part }, cross_entropy),
        (true, false) => StageBox::new(Tokens { part }),
        (false, true) => StageBox::with_loss(Hidden { part }, cross_entropy),
        (false, false) => StageBox::new(Hidden { part }),
    };
    stage.named(names)
}

pub(crate) fn vocabulary(spread: Spread) -> Vocabulary {
    let mut vocabulary = Vocabulary::new();
    if spread.tied {
        return vocabulary.tied("token", plain::token);
    }
    if spread.embedding {
        vocabulary = vocabulary.embedding("token", plain::token);
    }
    if spread.head {
        vocabulary = vocabulary.head("scores", plain::scores);
    }
    vocabulary
}

/// A family with its chunks, over so many ranks.
pub(crate) fn builder(spread: Spread, family: (&str, usize), ranks: usize, microbatches: usize) -> Builder {
    let builder = Pipeline::builder()
        .schedule(family.0, Size { ranks, chunks: family.1, microbatches })
        .devices(vec![Device::flex()])
        .stages(move |at| stage_or_broken(spread, None, at))
        .optimizer(|| SgdConfig::new().init());
    if spread == NOTHING { builder } else { builder.vocabulary(vocabulary(spread)) }
}

pub(crate) fn batch(samples: usize) -> Batch {
    let (tokens, targets) = data(samples);
    Batch::new(tokens).target(targets)
}

/// All weights of the model, whole, by name.
pub(crate) fn weights(pipeline: &mut Pipeline) -> BTreeMap<String, Vec<f32>> {
    let named = pipeline.named_weights().unwrap().into_iter().flatten();
    named.map(|weight| (weight.names[0].clone(), weight.value.to_data().unwrap().iter::<f32>().collect())).collect()
}

/// Some steps.
pub(crate) fn trained(pipeline: &mut Pipeline, samples: usize, steps: usize, rate: f64) -> Trained {
    let mut step = || {
        let report = pipeline.step(batch(samples), rate).unwrap();
        (report.loss, report.gradient_norm.unwrap())
    };
    let steps = (0..steps).map(|_| step()).collect();
    Trained { steps, weights: weights(pipeline) }
}
