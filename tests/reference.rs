//! The plain loop on one device that every pipeline must equal: the whole model, microbatch by microbatch, with
//! Burn's own `backward` and nothing of this project's runtime.

use crate::device::device;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer};
use burn::tensor::Tensor;
use burn_pipeline::train::StageContext;

/// The whole model as one stage: stage 0 of 1.
pub fn whole() -> StageContext {
    StageContext {
        index: 0,
        stages: 1,
        rank: 0,
        device: device().autodiff(),
        cut: None,
        group: Default::default(),
        replicas: Default::default(),
    }
}

/// A model trained by the plain loop.
#[allow(missing_debug_implementations, reason = "Burn's optimizer has none")]
pub struct Reference<M: Module> {
    /// The whole model.
    pub model: M,
    optimizer: ModuleOptimizer,
}

/// The results of one step of the plain loop.
#[derive(Debug)]
pub struct ReferenceStep {
    /// The loss over the batch.
    pub loss: f64,
    /// The gradients that the optimizer gets, in visiting order.
    pub gradients: Vec<Vec<f32>>,
    /// Their norm before clipping.
    pub norm: f64,
}

impl<M: Module> Reference<M> {
    /// A model to be trained with AdamW.
    pub fn new(model: M) -> Self {
        Self { model, optimizer: AdamWConfig::new().init() }
    }

    /// A model that continues training with an optimizer that has state.
    pub fn resumed(model: M, optimizer: ModuleOptimizer) -> Self {
        Self { model, optimizer }
    }

    /// One step. `loss_of(model, i)` is the loss of microbatch `i`, which holds `sizes[i]` samples. The batch's
    /// loss is the mean over samples. Backwards run in microbatch order, each seeded with its size divided by the
    /// first one's, and the sum is scaled once.
    pub fn step(
        &mut self,
        sizes: &[usize],
        learning_rate: impl Into<ModuleLearningRate>,
        clip: Option<f64>,
        loss_of: impl Fn(&M, usize) -> Tensor<1>,
    ) -> ReferenceStep
    where
        M: Clone,
    {
        let all = (0..sizes.len()).collect();
        self.step_in_parts(sizes, &[all], learning_rate, clip, loss_of)
    }

    /// Like [`Reference::step`], but adds up each part's gradients first, and then the parts' sums: the order of
    /// additions of several replicas.
    pub fn step_in_parts(
        &mut self,
        sizes: &[usize],
        parts: &[Vec<usize>],
        learning_rate: impl Into<ModuleLearningRate>,
        clip: Option<f64>,
        loss_of: impl Fn(&M, usize) -> Tensor<1>,
    ) -> ReferenceStep
    where
        M: Clone,
    {
        let mut sum = GradientsAccumulator::new();
        let (mut losses, samples) = (vec![0.0; sizes.len()], sizes.iter().sum::<usize>() as f64);
        for part in parts.iter().filter(|part| !part.is_empty()) {
            let mut own = GradientsAccumulator::new();
            for &i in part {
                let value = loss_of(&self.model, i);
                losses[i] = value.clone().into_scalar::<f32>() as f64 * sizes[i] as f64;
                let share = sizes[i] as f64 / sizes[0] as f64;
                let seeded = if share == 1.0 { value } else { value.mul_scalar(share) };
                own.accumulate(&self.model, GradientsParams::from_grads(seeded.backward(), &self.model));
            }
            sum.accumulate(&self.model, own.grads());
        }
        let loss: f64 = losses.iter().sum();
        let mut gradients = Scale { factor: sizes[0] as f64 / samples, gradients: sum.grads(), squares: 0.0 };
        self.model.visit(&mut gradients);
        let norm = gradients.squares.sqrt();
        if let Some(limit) = clip.filter(|&limit| norm > limit) {
            gradients.factor = limit / (norm + 1e-6);
            self.model.visit(&mut gradients);
        }
        let mut read = Read { gradients: &gradients.gradients, rows: Vec::new() };
        self.model.visit(&mut read);
        let rows = read.rows;
        self.model = self.optimizer.step(learning_rate, self.model.clone(), gradients.gradients);
        ReferenceStep { loss: loss / samples, gradients: rows, norm }
    }

    /// The weights, in visiting order.
    pub fn weights(&self) -> Vec<Vec<f32>> {
        weights(&self.model)
    }
}

/// A module's weights, in visiting order.
pub fn weights<M: Module>(model: &M) -> Vec<Vec<f32>> {
    struct Weights(Vec<Vec<f32>>);

    impl ModuleVisitor for Weights {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.val().into_data().iter::<f32>().collect());
        }
    }

    let mut weights = Weights(Vec::new());
    model.visit(&mut weights);
    weights.0
}

struct Scale {
    factor: f64,
    gradients: GradientsParams,
    squares: f64,
}

impl ModuleVisitor for Scale {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.gradients.remove::<D>(param.id) {
            let scaled = if self.factor == 1.0 { gradient } else { gradient.mul_scalar(self.factor) };
            self.squares += (scaled.clone() * scaled.clone()).sum().into_scalar::<f32>() as f64;
            self.gradients.register(param.id, scaled);
        }
    }
}

struct Read<'a> {
    gradients: &'a GradientsParams,
    rows: Vec<Vec<f32>>,
}

impl ModuleVisitor for Read<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient = self.gradients.get::<D>(param.id);
        self.rows.push(gradient.map(|g| g.into_data().iter::<f32>().collect()).unwrap_or_default());
    }
}
