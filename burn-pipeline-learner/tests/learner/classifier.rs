//! A small classifier of points in the plane, and its data.

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::InMemDataset;
use burn::module::{Module, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, FloatDType, Int, Tensor, activation::tanh};
use burn_pipeline::{Batch, Stage, StageBox, StageContext, init_seeded};
use burn_pipeline_learner::PipelineModel;
use burn_train::{ClassificationOutput, InferenceStep, TrainOutput, TrainStep};
use std::sync::Arc;

/// Widths between layers: six layers, so up to six stages.
const WIDTHS: [usize; 7] = [2, 8, 8, 8, 8, 8, 3];

/// The whole model, and each part of it.
#[derive(Module, Debug)]
pub(crate) struct Classifier {
    pub(crate) layers: Vec<Linear>,
    norm: Option<BatchNorm>,
    /// The number of steps, counted by the first stage.
    pub(crate) steps: Option<Param<Tensor<1>>>,
    ends: bool,
    panics: bool,
    #[module(skip)]
    mode: Cut,
}

/// How `stage` cuts the model.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cut {
    Whole,
    LeavesOut,
    New,
    Twice,
}

impl Classifier {
    pub(crate) fn new(seed: u64, device: &Device) -> Self {
        let linear = |i: usize| {
            init_seeded(seed + i as u64, device, |device| LinearConfig::new(WIDTHS[i], WIDTHS[i + 1]).init(device))
        };
        Self {
            layers: (0..6).map(linear).collect(),
            norm: None,
            steps: None,
            ends: true,
            panics: false,
            mode: Cut::Whole,
        }
    }

    /// Adds running statistics behind the first layer.
    pub(crate) fn with_norm(self, device: &Device) -> Self {
        Self { norm: Some(BatchNormConfig::new(8).init(device)), ..self }
    }

    /// Makes the model count its steps.
    pub(crate) fn that_counts(self, device: &Device) -> Self {
        Self { steps: Some(Param::from_tensor(Tensor::zeros([1], device)).no_grad()), ..self }
    }

    /// Freezes the first layer.
    pub(crate) fn with_frozen_layer(mut self) -> Self {
        self.layers[0] = self.layers[0].clone().no_grad();
        self
    }

    /// Makes the last stage's forward panic.
    pub(crate) fn that_panics(self) -> Self {
        Self { panics: true, ..self }
    }

    pub(crate) fn cut(self, mode: Cut) -> Self {
        Self { mode, ..self }
    }

    /// The part of a stage.
    pub(crate) fn part(&self, at: &StageContext) -> Self {
        let share = at.layers(self.layers.len());
        let layers = match self.mode {
            Cut::LeavesOut if at.is_first() => self.layers[share.start..share.end - 1].to_vec(),
            Cut::New => share.map(|i| LinearConfig::new(WIDTHS[i], WIDTHS[i + 1]).init(&at.device)).collect(),
            Cut::Twice if at.is_last() => self.layers[1..2].iter().chain(&self.layers[share]).cloned().collect(),
            _ => self.layers[share].to_vec(),
        };
        let norm = self.norm.clone().filter(|_| at.is_first());
        let steps = self.steps.clone().filter(|_| at.is_first());
        Self { layers, norm, steps, ends: at.is_last(), ..self.clone() }
    }

    pub(crate) fn scores(&self, x: Tensor<2>) -> Tensor<2> {
        assert!(!self.panics || !self.ends, "this layer is broken");
        let last = self.layers.len() - 1;
        // Stages in half precision get the points in f32.
        let x = x.cast(FloatDType::from(self.layers[0].weight.dtype()));
        self.layers.iter().enumerate().fold(x, |x, (i, layer)| {
            let x = layer.forward(x);
            let x = match &self.norm {
                Some(norm) if i == 0 => norm.forward(x),
                _ => x,
            };
            if self.ends && i == last { x } else { tanh(x) }
        })
    }
}

impl Stage for Classifier {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        self.scores(x)
    }

    fn after_step(mut self, _: &[Vec<f64>]) -> Self {
        let count = |steps: Param<Tensor<1>>| steps.map(|steps| steps + 1.0).no_grad();
        self.steps = self.steps.map(count);
        self
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Points {
    pub(crate) x: Tensor<2>,
    pub(crate) targets: Tensor<1, Int>,
}

pub(crate) fn loss(scores: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    CrossEntropyLossConfig::new().init(&scores.device()).forward(scores, targets)
}

pub(crate) fn outcome(scores: Tensor<2>, targets: Tensor<1, Int>) -> ClassificationOutput {
    ClassificationOutput::new(loss(scores.clone(), targets.clone()), scores, targets)
}

impl TrainStep for Classifier {
    type Input = Points;
    type Output = ClassificationOutput;

    fn step(&self, item: Points) -> TrainOutput<ClassificationOutput> {
        let outcome = outcome(self.scores(item.x), item.targets);
        TrainOutput::new(self, outcome.loss.backward(), outcome)
    }
}

impl InferenceStep for Classifier {
    type Input = Points;
    type Output = ClassificationOutput;

    fn step(&self, item: Points) -> ClassificationOutput {
        outcome(self.scores(item.x), item.targets)
    }
}

impl PipelineModel for Classifier {
    type LastOutput = Tensor<2>;

    fn stage(&self, at: &StageContext) -> StageBox {
        let part = self.part(at);
        match at.is_last() {
            true => StageBox::with_loss(part, loss),
            false => StageBox::new(part),
        }
    }

    fn batch(item: &Points) -> Batch {
        Batch::new(item.x.clone()).target(item.targets.clone())
    }

    fn outcome(item: Points, scores: Tensor<2>) -> ClassificationOutput {
        outcome(scores, item.targets)
    }
}

#[derive(Clone, Debug)]
struct Batching;

impl Batcher<([f32; 2], i64), Points> for Batching {
    fn batch(&self, items: Vec<([f32; 2], i64)>, device: &Device) -> Points {
        let (x, targets): (Vec<[f32; 2]>, Vec<i64>) = items.into_iter().unzip();
        let rows = x.len();
        let x = Tensor::<1>::from_floats(x.concat().as_slice(), device).reshape([rows, 2]);
        Points { x, targets: Tensor::from_ints(targets.as_slice(), device) }
    }
}

/// Points on a spiral, of three classes. The last batch is smaller than the others.
pub(crate) fn points(count: usize, batch: usize, shift: f32) -> Arc<dyn DataLoader<Points>> {
    let point = |i: usize| {
        let (class, along) = (i % 3, i as f32 / count as f32 + shift);
        let angle = class as f32 * 2.0944 + 2.0 * along;
        ([2.0 * along * angle.cos(), 2.0 * along * angle.sin()], class as i64)
    };
    DataLoaderBuilder::new(Batching).batch_size(batch).build(InMemDataset::new((0..count).map(point).collect()))
}
