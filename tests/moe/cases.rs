//! The model that parity is proved on, its data, and the plain loop with `main + auxiliary` written out.

#![allow(clippy::single_range_in_vec_init, reason = "a list of ranges may hold one")]

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::schedule::{Schedule, Size, by_name};
use burn_pipeline::stage::{AnyTensor, Batch, SplitBackward, Stage};
use burn_pipeline::train::{Builder, Pipeline, StageContext};
use burn_pipeline_moe::auxiliary::{AuxiliaryWeights, LayerObservation, read};
use burn_pipeline_moe::structure::documents;
use pipeline_examples::moe_gpt::{DOCUMENTS, MoeGptConfig, MoeGptPart, MoeSignal, cross_entropy, stage};
use pipeline_tests::reference::{Reference, whole};
use std::ops::Range;

pub(crate) const SEQ: usize = 6;
const VOCAB: usize = 17;

/// A model of every kind of block, its auxiliary losses heavy enough that a wrong factor shows.
pub(crate) fn config() -> MoeGptConfig {
    let weights = AuxiliaryWeights { load_balance: 2.0, router_z: 0.5, depth_router: 0.7 };
    let config = MoeGptConfig::new().with_pattern("EDeEdEEE".to_owned()).with_auxiliary(weights).with_seed(5);
    config.with_d_model(8).with_heads(2).with_seq(SEQ).with_vocab(VOCAB).with_d_hidden(4).with_experts(4)
}

/// Numbers in [-1, 1), without Burn's generator, which initial weights are drawn from.
pub(crate) fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Samples with their documents and targets.
pub(crate) struct Text {
    tokens: Tensor<2, Int>,
    documents: Tensor<2, Int>,
    next: Tensor<2, Int>,
}

impl Text {
    pub(crate) fn new(seed: u64, samples: usize) -> Self {
        let draw = |seed| {
            let tokens: Vec<i32> =
                noise(seed, samples * SEQ).iter().map(|x| ((x + 1.0) * 0.5 * VOCAB as f32) as i32).collect();
            Tensor::<1, Int>::from_ints(&*tokens, &Device::flex()).reshape([samples, SEQ])
        };
        let tokens: Tensor<2, Int> = draw(2 * seed);
        // Three of seventeen tokens start a document, so documents end inside sequences.
        let starts = tokens.clone().lower_scalar(3).int() - 1;
        Self { documents: documents(starts, 0), tokens, next: draw(2 * seed + 1) }
    }

    pub(crate) fn batch(&self) -> Batch {
        let batch = Batch::new(MoeSignal::Tokens(self.tokens.clone())).target(self.next.clone());
        batch.extra(DOCUMENTS, self.documents.clone())
    }

    /// Main and auxiliary loss of some samples on one device, and what is to be observed of each layer.
    pub(crate) fn losses(
        &self,
        config: &MoeGptConfig,
        model: &MoeGptPart,
        samples: Range<usize>,
    ) -> (Tensor<1>, Option<Tensor<1>>, Vec<LayerObservation>) {
        let cut = |tensor: &Tensor<2, Int>| tensor.clone().slice([samples.clone()]).autodiff();
        let (logits, left) = model.whole(cut(&self.tokens), cut(&self.documents));
        let device = logits.device();
        let rows = burn_pipeline_moe::auxiliary::observe(None, &left, config.experts, &device).unwrap();
        let rows: Vec<f64> = rows.into_data().iter::<f64>().collect();
        let observed = read(&rows, config.experts);
        (cross_entropy(logits, cut(&self.next)), config.losses().unwrap().total(&left), observed)
    }
}

/// Sizes of `count` pieces of `samples` samples: as even as can be, larger first.
pub(crate) fn sizes(samples: usize, count: usize) -> Vec<usize> {
    (0..count).map(|piece| samples / count + usize::from(piece < samples % count)).collect()
}

/// Gradients, what is observed of each layer and microbatch, and the loss that the pipeline reports.
pub(crate) struct Got {
    pub(crate) gradients: Vec<Vec<f32>>,
    pub(crate) observed: Vec<Vec<LayerObservation>>,
    pub(crate) loss: f64,
}

/// The plain loop over several batches as one step: each microbatch's loss is `main + auxiliary`.
pub(crate) fn plain(config: &MoeGptConfig, batches: &[usize], microbatches: usize) -> Got {
    let mut reference = Reference::new(config.part(&whole()).unwrap());
    let texts: Vec<Text> = batches.iter().enumerate().map(|(i, &samples)| Text::new(i as u64 + 1, samples)).collect();
    let mut pieces: Vec<(usize, Range<usize>)> = Vec::new();
    for (batch, &samples) in batches.iter().enumerate() {
        let mut start = 0;
        for size in sizes(samples, microbatches.min(samples)) {
            pieces.push((batch, start..start + size));
            start += size;
        }
    }
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
    Got { gradients: step.gradients, observed: observed.into_inner(), loss: loss / samples as f64 }
}

/// A pipeline of the model; `wrap` may put something around its parts.
pub(crate) fn builder<M: Stage<Output = MoeSignal>>(
    schedule: &dyn Schedule,
    size: Size,
    config: &MoeGptConfig,
    wrap: impl Fn(MoeGptPart, &StageContext) -> M + Send + Sync + 'static,
) -> Builder {
    let config = config.clone();
    let builder = Pipeline::builder().schedule(by_name(schedule.family().name).unwrap(), size);
    let builder = builder.devices(vec![Device::flex()]).split(SplitBackward::Eager);
    builder.stages(move |at| stage(wrap(config.part(at).unwrap(), at), at))
}

/// The same step in the pipeline.
pub(crate) fn pipelined(builder: Builder, batches: &[usize], experts: usize) -> Got {
    let mut pipeline = builder.build().unwrap();
    let (mut observed, mut loss) = (Vec::new(), 0.0);
    for (i, &samples) in batches.iter().enumerate() {
        let report = pipeline.accumulate(Text::new(i as u64 + 1, samples).batch()).unwrap();
        observed.extend(report.observed.iter().map(|numbers| read(numbers, experts)));
        loss += report.loss * samples as f64;
    }
    let gradients = pipeline.take_gradients().unwrap();
    let numbers = |gradient: &Option<AnyTensor>| {
        gradient.as_ref().map(|g| g.to_data().unwrap().iter::<f32>().collect()).unwrap_or_default()
    };
    let gradients = gradients.iter().flatten().map(numbers).collect();
    Got { gradients, observed, loss: loss / batches.iter().sum::<usize>() as f64 }
}

/// For each parameter in visiting order: is it a router's?
pub(crate) fn routers<M: Module>(model: &M) -> Vec<bool> {
    struct Routers(Vec<String>, Vec<bool>);

    impl ModuleVisitor for Routers {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.push(name.to_owned());
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.pop();
        }

        fn visit_float<const D: usize>(&mut self, _: &Param<Tensor<D>>) {
            self.1.push(self.0.iter().any(|name| name == "router"));
        }
    }

    let mut routers = Routers(Vec::new(), Vec::new());
    model.visit(&mut routers);
    routers.1
}

/// How far a pipeline is from the plain loop: the largest difference of a parameter's gradient, over that gradient's
/// largest number; and of what is observed.
#[derive(Debug, Default)]
pub(crate) struct Distance {
    pub(crate) routers: f64,
    pub(crate) others: f64,
    pub(crate) observed: f64,
    pub(crate) loss: f64,
}

pub(crate) fn distance(config: &MoeGptConfig, got: &Got, expected: &Got) -> Distance {
    let routers = routers(&config.part(&whole()).unwrap());
    assert_eq!(routers.iter().filter(|&&router| router).count(), 8, "six layers of experts, two mixtures of depths");
    assert_eq!((got.gradients.len(), expected.gradients.len()), (routers.len(), routers.len()));
    let mut distance = Distance { loss: (got.loss - expected.loss).abs(), ..Distance::default() };
    for ((got, expected), router) in got.gradients.iter().zip(&expected.gradients).zip(routers) {
        assert_eq!(got.len(), expected.len(), "a gradient is missing");
        let largest = expected.iter().fold(0.0f32, |max, x| max.max(x.abs()));
        assert!(largest > 0.0 || !router, "a router without gradient proves nothing");
        let apart = got.iter().zip(expected).fold(0.0f32, |max, (a, b)| max.max((a - b).abs()));
        let worst = if router { &mut distance.routers } else { &mut distance.others };
        *worst = worst.max((apart / largest.max(1e-12)) as f64);
    }
    assert_eq!(got.observed.len(), expected.observed.len(), "microbatches observed");
    for (got, expected) in got.observed.iter().flatten().zip(expected.observed.iter().flatten()) {
        let of = |layer: &LayerObservation| {
            let losses = [layer.load_balance, layer.router_z, layer.depth_router, layer.dropped];
            losses.into_iter().chain(layer.load.iter().copied()).collect::<Vec<f64>>()
        };
        let apart = of(got).iter().zip(of(expected)).fold(0.0f64, |max, (a, b)| max.max((a - b).abs()));
        distance.observed = distance.observed.max(apart);
    }
    distance
}
