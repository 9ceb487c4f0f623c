//! The same decoder as stages, between a vocabulary-parallel or ordinary embedding and head.

use super::plain::{self, BLOCKS, Block, Trained, cross_entropy, data};
use burn::module::{Module, Param};
use burn::nn::{Embedding, LayerNorm, Linear};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::stage::{Names, Stage, StageBox};
use burn_pipeline::{Batch, Builder, Pipeline, Size, StageContext, Vocabulary};
use std::collections::BTreeMap;

/// The layers that are vocabulary parallel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parallel {
    pub(crate) embedding: bool,
    pub(crate) head: bool,
    /// True if the head is the embedding's matrix.
    pub(crate) tied: bool,
}

pub(crate) const BOTH: Parallel = Parallel { embedding: true, head: true, tied: false };
pub(crate) const EMBEDDING: Parallel = Parallel { embedding: true, head: false, tied: false };
pub(crate) const HEAD: Parallel = Parallel { embedding: false, head: true, tied: false };
pub(crate) const TIED: Parallel = Parallel { embedding: true, head: true, tied: true };
pub(crate) const NOTHING: Parallel = Parallel { embedding: false, head: false, tied: false };

#[derive(Module, Debug)]
struct Part {
    token: Option<Embedding>,
    position: Option<Param<Tensor<2>>>,
    blocks: Vec<Block>,
    norm: Option<LayerNorm>,
    scores: Option<Linear>,
    /// True if its forward panics.
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

/// A stage whose input is hidden states.
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

/// A stage whose input is tokens.
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

/// A stage. The forward of stage `broken` panics.
pub(crate) fn stage_or_broken(parallel: Parallel, broken: Option<usize>, at: &StageContext) -> StageBox {
    let (layers, device) = (at.layers(BLOCKS), &at.device);
    let part = Part {
        token: (at.is_first() && !parallel.embedding).then(|| plain::token(device)),
        position: at.is_first().then(|| plain::position(device)),
        blocks: layers.clone().map(|place| plain::block(place, device)).collect(),
        norm: at.is_last().then(|| plain::norm(device)),
        scores: (at.is_last() && !parallel.head).then(|| plain::scores(device)),
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

pub(crate) fn vocabulary(parallel: Parallel) -> Vocabulary {
    let mut vocabulary = Vocabulary::new();
    if parallel.tied {
        return vocabulary.tied("token", plain::token);
    }
    if parallel.embedding {
        vocabulary = vocabulary.embedding("token", plain::token);
    }
    if parallel.head {
        vocabulary = vocabulary.head("scores", plain::scores);
    }
    vocabulary
}

/// A pipeline of a schedule with its chunks, over `ranks` ranks.
pub(crate) fn builder(parallel: Parallel, schedule: (&str, usize), ranks: usize, microbatches: usize) -> Builder {
    let builder = Pipeline::builder()
        .schedule(schedule.0, Size { ranks, chunks: schedule.1, microbatches })
        .devices(vec![Device::flex()])
        .stages(move |at| stage_or_broken(parallel, None, at))
        .optimizer(|| SgdConfig::new().init());
    if parallel == NOTHING { builder } else { builder.vocabulary(vocabulary(parallel)) }
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
