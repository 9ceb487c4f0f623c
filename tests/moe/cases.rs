//! The model of the parity tests, its data, and the plain loop with `main + auxiliary` written out.

#![allow(clippy::single_range_in_vec_init, reason = "a list of ranges may hold one")]

use burn::tensor::{Int, Tensor};
use burn_pipeline::payload::AnyTensor;
use burn_pipeline::schedule::{Schedule, Size};
use burn_pipeline::stage::{Batch, SplitBackward, Stage, named_weights};
use burn_pipeline::train::{Builder, Pipeline, StageContext};
use burn_pipeline_moe::auxiliary::{AuxiliaryWeights, LayerObservation, observation_rows, parse_rows};
use burn_pipeline_moe::extras::document_ids;
use pipeline_examples::moe::gpt::{MoeGptConfig, Observed};
use pipeline_examples::moe::part::{MoeGptPart, cross_entropies, joint_loss};
use pipeline_examples::moe::signal::{DOCUMENTS, MoeSignal, PLATFORM, RELATIONS, STRUCTURE, Sides, TOKENS};
use pipeline_tests::device::device;
use pipeline_tests::reference::{Reference, whole};
use std::collections::BTreeMap;
use std::ops::Range;

pub(crate) use pipeline_tests::noise::noise;

pub(crate) const SEQ: usize = 6;
const VOCAB: usize = 17;

/// A model with every kind of block. Its auxiliary losses are large enough that a wrong factor is noticed.
pub(crate) fn config() -> MoeGptConfig {
    let weights = AuxiliaryWeights { load_balance: 2.0, router_z: 0.5, depth_router: 0.7 };
    let config = MoeGptConfig::new().with_pattern("EDeEdEEE".to_owned()).with_auxiliary(weights).with_seed(5);
    config.with_d_model(8).with_heads(2).with_seq(SEQ).with_vocab(VOCAB).with_d_hidden(4).with_experts(4)
}

const RELATED: usize = 2;
const STRUCTURES: usize = 3;
const PLATFORMS: usize = 2;

/// The same with every optional part: enrichments on the first stage, windows, rotary positions on most layers, a
/// relation bias shared by all stages.
pub(crate) fn rich() -> MoeGptConfig {
    let config =
        config().with_ngram_buckets(31).with_structures(STRUCTURES).with_platforms(PLATFORMS).with_squash(true);
    let config = config.with_windows(vec![0, 3, 2]).with_rotary(true).with_without_rotary(vec![1, 4]);
    config.with_relations(RELATED).with_scale_embeddings(true)
}

/// The same with prediction of two tokens after the next one, the second by a block with experts.
pub(crate) fn ahead() -> MoeGptConfig {
    config().with_ahead("DE".to_owned()).with_ahead_weight(0.8)
}

/// Samples with their side data and targets.
pub(crate) struct Text {
    tokens: Tensor<2, Int>,
    sides: Sides,
    next: Tensor<2, Int>,
}

impl Text {
    pub(crate) fn new(seed: u64, samples: usize) -> Self {
        let draw = |seed, below: usize, shape: [usize; 2]| {
            let below = |x: &f32| ((x + 1.0) * 0.5 * below as f32) as i32;
            let values: Vec<i32> = noise(seed, shape.iter().product()).iter().map(below).collect();
            Tensor::<1, Int>::from_ints(&*values, &device()).reshape(shape)
        };
        let tokens: Tensor<2, Int> = draw(2 * seed, VOCAB, [samples, SEQ]);
        // Three of seventeen tokens start a document, so documents end inside sequences.
        let starts = tokens.clone().lower_scalar(3).int() - 1;
        let related = draw(seed + 300, 2, [samples, RELATED * SEQ * SEQ]).float();
        let sides = Sides {
            documents: document_ids(starts, 0),
            relations: Some(related.reshape([samples, RELATED, SEQ, SEQ])),
            structure: Some(draw(seed + 100, STRUCTURES, [samples, SEQ])),
            platform: Some(draw(seed + 200, PLATFORMS, [samples, 1]).flatten(0, 1)),
            tokens: Some(tokens.clone()),
        };
        Self { tokens, sides, next: draw(2 * seed + 1, VOCAB, [samples, SEQ]) }
    }

    /// The batch with all side data; each stage reads what it names.
    pub(crate) fn batch(&self) -> Batch {
        let batch = Batch::new(MoeSignal::Tokens(self.tokens.clone())).target(self.next.clone());
        let Sides { documents, relations, structure, platform, tokens } = self.sides.clone();
        let batch = batch.extra(DOCUMENTS, documents).extra(RELATIONS, relations.unwrap());
        let batch = batch.extra(STRUCTURE, structure.unwrap()).extra(PLATFORM, platform.unwrap());
        batch.extra(TOKENS, tokens.unwrap())
    }

    /// The batch for the model as a list of layers.
    pub(crate) fn of_list(&self) -> Batch {
        let Sides { documents, relations, structure, platform, tokens } = self.sides.clone();
        let batch = Batch::new(self.tokens.clone()).extra(DOCUMENTS, documents).extra(RELATIONS, relations);
        let batch = batch.extra(STRUCTURE, structure).extra(PLATFORM, platform).extra(TOKENS, tokens);
        batch.target(self.next.clone())
    }

    /// The main and auxiliary loss of some samples on one device, and their observations.
    pub(crate) fn losses(
        &self,
        config: &MoeGptConfig,
        model: &MoeGptPart,
        samples: Range<usize>,
    ) -> (Tensor<1>, Option<Tensor<1>>, Observed) {
        let cut = |tensor: &Tensor<2, Int>| tensor.clone().slice([samples.clone()]).autodiff();
        let sides = Sides {
            documents: cut(&self.sides.documents),
            relations: self.sides.relations.clone().map(|related| related.slice([samples.clone()]).autodiff()),
            structure: self.sides.structure.as_ref().map(cut),
            platform: self.sides.platform.clone().map(|ids| ids.slice([samples.clone()]).autodiff()),
            tokens: self.sides.tokens.as_ref().map(cut),
        };
        let (scores, left) = model.whole(cut(&self.tokens), &sides);
        let device = scores.next.device();
        let rows: Vec<f64> =
            observation_rows(None, &left, config.experts, &device).unwrap().into_data().iter::<f64>().collect();
        let (next, ahead) = cross_entropies(scores.next, scores.ahead, cut(&self.next));
        let number = |loss: &Tensor<1>| loss.clone().into_scalar::<f32>() as f64;
        let layers = parse_rows(&rows, config.experts);
        let observed = Observed { layers, next: number(&next), ahead: ahead.iter().map(number).collect() };
        (joint_loss(next, ahead, config.ahead_weight), config.losses().unwrap().total(&left), observed)
    }
}

/// The sizes of `count` pieces of `samples` samples: as even as possible, larger ones first.
pub(crate) fn sizes(samples: usize, count: usize) -> Vec<usize> {
    (0..count).map(|piece| samples / count + usize::from(piece < samples % count)).collect()
}

/// Each microbatch of batches of these sizes: the number of its batch, and its samples in it.
pub(crate) fn cut_up(batches: &[usize], microbatches: usize) -> Vec<(usize, Range<usize>)> {
    let mut pieces = Vec::new();
    for (batch, &samples) in batches.iter().enumerate() {
        let mut start = 0;
        for size in sizes(samples, microbatches.min(samples)) {
            pieces.push((batch, start..start + size));
            start += size;
        }
    }
    pieces
}

/// The gradients by parameter name, the observations of each microbatch, and the reported loss.
pub(crate) struct Got {
    pub(crate) gradients: BTreeMap<String, Vec<f32>>,
    pub(crate) observed: Vec<Observed>,
    pub(crate) loss: f64,
}

/// The plain loop over several batches as one step, where each microbatch's loss is `main + auxiliary`.
pub(crate) fn plain(config: &MoeGptConfig, batches: &[usize], microbatches: usize) -> Got {
    let mut reference = Reference::new(config.part(&whole()).unwrap());
    let texts: Vec<Text> = batches.iter().enumerate().map(|(i, &samples)| Text::new(i as u64 + 1, samples)).collect();
    let pieces = cut_up(batches, microbatches);
    let all: Vec<usize> = pieces.iter().map(|(_, samples)| samples.len()).collect();
    let (observed, mains) = (std::cell::RefCell::new(Vec::new()), std::cell::RefCell::new(Vec::new()));
    let step = reference.step(&all, 1e-3, None, |model, i| {
        let (batch, samples) = pieces[i].clone();
        let (main, auxiliary, rows) = texts[batch].losses(config, model, samples);
        observed.borrow_mut().push(rows);
        mains.borrow_mut().push(main.clone().into_scalar::<f32>() as f64);
        match auxiliary {
            Some(auxiliary) => main + auxiliary,
            None => main,
        }
    });
    let samples: usize = all.iter().sum();
    let loss = mains.into_inner().iter().zip(&all).map(|(loss, &size)| loss * size as f64).sum::<f64>();
    let names = names(config, &whole());
    let gradients = names.into_iter().zip(step.gradients).collect();
    Got { gradients, observed: observed.into_inner(), loss: loss / samples as f64 }
}

/// The parameters of a part by their names in the whole model, in visiting order.
fn names(config: &MoeGptConfig, at: &StageContext) -> Vec<String> {
    let (part, names) = (config.part(at).unwrap(), config.names(at).unwrap());
    named_weights(&part, &names).into_iter().map(|mut weight| weight.names.remove(0)).collect()
}

/// The values of each stage's parameters, by name in the whole model. Copies must be equal.
pub(crate) fn by_name_in_model(
    config: &MoeGptConfig,
    stages: impl IntoIterator<Item = Vec<Vec<f32>>>,
) -> BTreeMap<String, Vec<f32>> {
    let stages: Vec<_> = stages.into_iter().collect();
    let (count, mut found) = (stages.len(), BTreeMap::new());
    for (index, values) in stages.into_iter().enumerate() {
        let names = names(
            config,
            &StageContext {
                index,
                stages: count,
                rank: 0,
                device: device(),
                cut: None,
                group: Default::default(),
                replicas: Default::default(),
            },
        );
        assert_eq!(names.len(), values.len(), "parameters of stage {index}");
        for (name, values) in names.into_iter().zip(values) {
            if let Some(first) = found.insert(name.clone(), values.clone()) {
                assert_eq!(first, values, "copies of {name}");
            }
        }
    }
    found
}

pub(crate) fn floats(tensor: &AnyTensor) -> Vec<f32> {
    tensor.to_data().unwrap().iter::<f32>().collect()
}

/// A pipeline of the model; `wrap` may wrap its parts.
pub(crate) fn builder<M: Stage<Output = MoeSignal>>(
    schedule: &dyn Schedule,
    size: Size,
    config: &MoeGptConfig,
    wrap: impl Fn(MoeGptPart, &StageContext) -> M + Send + Sync + 'static,
) -> Builder {
    let config = config.clone();
    let builder = Pipeline::builder().schedule(schedule.info().name, size);
    let builder = builder.devices(vec![device()]).split(SplitBackward::Eager);
    let builder = config.shared().into_iter().fold(builder, Builder::share);
    builder.stages(move |at| config.stage(wrap(config.part(at).unwrap(), at), at).unwrap())
}

/// The same step in the pipeline.
pub(crate) fn pipelined(builder: Builder, batches: &[usize], config: &MoeGptConfig) -> Got {
    step_of(builder.build().unwrap(), batches, config)
}

/// The same step in an existing pipeline.
pub(crate) fn step_of(mut pipeline: Pipeline, batches: &[usize], config: &MoeGptConfig) -> Got {
    let (mut observed, mut loss) = (Vec::new(), 0.0);
    for (i, &samples) in batches.iter().enumerate() {
        let report = pipeline.accumulate(Text::new(i as u64 + 1, samples).batch()).unwrap();
        observed.extend(report.observed.iter().map(|numbers| config.read(numbers)));
        loss += report.loss * samples as f64;
    }
    let gradients = pipeline.take_gradients().unwrap();
    let numbers = |gradient: &Option<AnyTensor>| gradient.as_ref().map(floats).unwrap_or_default();
    let gradients = gradients.iter().map(|stage| stage.iter().map(numbers).collect());
    let gradients = by_name_in_model(config, gradients);
    Got { gradients, observed, loss: loss / batches.iter().sum::<usize>() as f64 }
}

/// The distance of a pipeline from the plain loop: the largest difference of a parameter's gradient, relative to
/// that gradient's largest number; and the difference of the observations.
#[derive(Debug, Default)]
pub(crate) struct Distance {
    pub(crate) routers: f64,
    pub(crate) others: f64,
    pub(crate) observed: f64,
    pub(crate) loss: f64,
}

pub(crate) fn distance(config: &MoeGptConfig, got: &Got, expected: &Got) -> Distance {
    let (mut distance, mut routers) = (Distance { loss: (got.loss - expected.loss).abs(), ..Distance::default() }, 0);
    let names = |got: &Got| got.gradients.keys().cloned().collect::<Vec<String>>();
    assert_eq!(names(got), names(expected), "parameters");
    for ((name, expected), got) in expected.gradients.iter().zip(got.gradients.values()) {
        let router = name.contains("router");
        routers += usize::from(router);
        assert_eq!(got.len(), expected.len(), "the gradient of {name} is missing");
        let largest = expected.iter().fold(0.0f32, |max, x| max.max(x.abs()));
        assert!(largest > 0.0 || !router, "the gradient of a router is zero");
        let difference = got.iter().zip(expected).fold(0.0f32, |max, (a, b)| max.max((a - b).abs()));
        let worst = if router { &mut distance.routers } else { &mut distance.others };
        *worst = worst.max((difference / largest.max(1e-12)) as f64);
    }
    let blocks = config.blocks().unwrap();
    let wanted: usize =
        blocks.iter().map(|kind| usize::from(kind.has_experts()) + usize::from(kind.has_depths())).sum();
    assert_eq!(routers, wanted, "one router per layer of experts and per mixture of depths");
    assert_eq!(got.observed.len(), expected.observed.len(), "microbatches observed");
    for (got, expected) in got.observed.iter().zip(&expected.observed) {
        assert_eq!((got.layers.len(), got.ahead.len()), (blocks.len(), config.ahead.len()));
        let of = |observed: &Observed| {
            let layer = |layer: &LayerObservation| {
                let losses = [layer.load_balance, layer.router_z, layer.depth_router, layer.dropped];
                losses.into_iter().chain(layer.load.iter().copied()).collect::<Vec<f64>>()
            };
            let losses = [observed.next].into_iter().chain(observed.ahead.iter().copied());
            losses.chain(observed.layers.iter().flat_map(layer)).collect::<Vec<f64>>()
        };
        let difference = of(got).iter().zip(of(expected)).fold(0.0f64, |max, (a, b)| max.max((a - b).abs()));
        distance.observed = distance.observed.max(difference);
    }
    distance
}
