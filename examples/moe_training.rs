//! A GPT with experts in training, one step at a time, and what its routers did.

use crate::corpus::Windows;
use crate::moe_gpt::{DOCUMENTS, MoeSignal, stage};
use crate::moe_options::{MoeRunFlags, MoeSetup};
use crate::saved::same_flags;
use crate::traces::end_to_end;
use crate::training::{Evaluation, StepRecord, TrainError, tokens};
use burn::optim::AdamWConfig;
use burn::tensor::Tensor;
use burn_pipeline::cost::Profile;
use burn_pipeline::simulate::{SimulateOptions, simulate};
use burn_pipeline::stage::{AnyTensor, Batch};
use burn_pipeline::trace::Track;
use burn_pipeline::train::{CheckpointError, Checkpoints, Pipeline, StepReport, measured_profile};
use burn_pipeline_moe::auxiliary::{LayerObservation, over_microbatches};
use burn_pipeline_moe::layers::PatternError;
use burn_pipeline_moe::structure::{Structure, StructureError, documents};
use serde::Serialize;
use std::collections::VecDeque;

/// Gradients are clipped to this norm.
const CLIP_NORM: f64 = 1.0;
/// Steps whose timeline is kept.
const KEPT_STEPS: usize = 3;
/// Checkpoints that are kept.
const KEPT_CHECKPOINTS: usize = 3;

/// Why training stopped.
#[derive(Debug, thiserror::Error)]
pub enum MoeTrainError {
    /// Building or running the pipeline failed.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The pattern is none.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// The document ids do not fit the batch.
    #[error(transparent)]
    Structure(#[from] StructureError),
}

/// What a step tells; a line of `--log json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MoeStepRecord {
    /// What any training tells; the loss is the main one.
    #[serde(flatten)]
    pub step: StepRecord,
    /// Mean load-balancing loss over layers with experts: 1 where even.
    pub load_balance: f64,
    /// Mean router z-loss over layers with experts.
    pub router_z: f64,
    /// Mean router loss over layers that tokens go around.
    pub depth_router: f64,
    /// Choices that found their expert full, over all choices.
    pub dropped: f64,
    /// Largest load over mean load, of each layer with experts.
    pub imbalance: Vec<f64>,
    /// Choices that fell on each expert, of each layer with experts.
    pub load: Vec<Vec<f64>>,
}

/// A GPT with experts in training.
#[derive(Debug)]
pub struct MoeTrainer {
    setup: MoeSetup,
    /// Which blocks have experts, and which let tokens around.
    kinds: Vec<(bool, bool)>,
    pipeline: Pipeline,
    checkpoints: Option<Checkpoints>,
    done: usize,
    recent: VecDeque<StepReport>,
}

impl MoeTrainer {
    /// Builds the pipeline: the stages are made on their ranks. Goes on from the latest checkpoint, if that was asked
    /// for and there is one.
    ///
    /// # Errors
    /// If the plan is not legal, a rank cannot make its stages, or the checkpoint cannot be read or is of another run.
    pub fn new(setup: MoeSetup) -> Result<Self, MoeTrainError> {
        let (model, recompute) = (setup.model.clone(), setup.common.options.recompute);
        let kinds = model.blocks()?.into_iter().map(|kind| (kind.has_experts(), kind.has_depths())).collect();
        let optimizer = AdamWConfig::new().with_beta_2(0.99).with_epsilon(1e-8).with_weight_decay(0.1);
        let pipeline = Pipeline::builder()
            .plan(setup.common.plan.clone())
            .stages(move |at| match model.part(at) {
                Ok(part) => stage(part, at).named(model.names(at)).recomputed(recompute),
                Err(error) => panic!("the pattern was checked before: {error}"),
            })
            .optimizer(move || optimizer.init())
            .clip_norm(CLIP_NORM)
            .devices(vec![setup.common.device.clone()])
            .threads(setup.common.options.threads)
            .build()
            .map_err(TrainError::from)?;
        let saves = setup.common.options.save.as_ref();
        let checkpoints = saves.map(|folder| Checkpoints::new(folder).keep(KEPT_CHECKPOINTS));
        let mut trainer = Self { setup, kinds, pipeline, checkpoints, done: 0, recent: VecDeque::new() };
        if trainer.setup.common.options.resume {
            trainer.resume()?;
        }
        Ok(trainer)
    }

    fn resume(&mut self) -> Result<(), TrainError> {
        let Some(checkpoints) = &self.checkpoints else { return Ok(()) };
        let checkpoint = match checkpoints.latest() {
            Err(CheckpointError::None { .. }) => return Ok(()),
            checkpoint => checkpoint?,
        };
        same_flags(&self.setup.flags, &checkpoint.beside::<MoeRunFlags>()?)?;
        self.pipeline.load(&checkpoint)?;
        self.done = self.pipeline.progress().steps as usize;
        Ok(())
    }

    /// Saves a checkpoint after the last step and after every so many.
    fn save(&mut self) -> Result<(), TrainError> {
        let Some(checkpoints) = &self.checkpoints else { return Ok(()) };
        let every = self.setup.common.options.save_every.is_some_and(|every| self.done.is_multiple_of(every));
        if every || self.done == self.setup.common.rates.len() {
            self.pipeline.save(checkpoints, &self.setup.flags)?;
        }
        Ok(())
    }

    /// What is trained, and how.
    pub fn setup(&self) -> &MoeSetup {
        &self.setup
    }

    /// The next step; `None` once all are done. A checkpoint that is due is saved.
    ///
    /// # Errors
    /// If a rank fails, or the checkpoint cannot be written.
    pub fn step(&mut self) -> Result<Option<MoeStepRecord>, MoeTrainError> {
        let Some(&learning_rate) = self.setup.common.rates.get(self.done) else { return Ok(None) };
        let options = &self.setup.common.options;
        let windows = self.setup.common.corpus.batch(options.seed, self.done, options.batch, options.seq);
        let batch = self.batch(&windows)?;
        let report = self.pipeline.step(batch, learning_rate).map_err(TrainError::from)?;
        self.done += 1;
        let step = StepRecord {
            step: self.done,
            loss: report.loss,
            learning_rate,
            gradient_norm: report.gradient_norm.unwrap_or(0.0),
            step_seconds: report.seconds,
            tokens_per_second: windows.inputs.len() as f64 / report.seconds,
        };
        let layers = over_microbatches(&report.observed, self.setup.model.experts);
        let record = self.record(step, &layers);
        self.recent.push_back(report);
        if self.recent.len() > KEPT_STEPS {
            self.recent.pop_front();
        }
        self.save()?;
        Ok(Some(record))
    }

    fn record(&self, step: StepRecord, layers: &[LayerObservation]) -> MoeStepRecord {
        let of = |has: fn(&(bool, bool)) -> bool| {
            layers.iter().zip(&self.kinds).filter(move |(_, kind)| has(kind)).map(|(layer, _)| layer)
        };
        let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len().max(1) as f64;
        let choices: f64 = of(|kind| kind.0).flat_map(|layer| layer.load.iter()).sum();
        MoeStepRecord {
            step,
            load_balance: mean(of(|kind| kind.0).map(|layer| layer.load_balance).collect()),
            router_z: mean(of(|kind| kind.0).map(|layer| layer.router_z).collect()),
            depth_router: mean(of(|kind| kind.1).map(|layer| layer.depth_router).collect()),
            dropped: of(|kind| kind.0).map(|layer| layer.dropped).sum::<f64>() / choices.max(1.0),
            imbalance: of(|kind| kind.0).map(LayerObservation::imbalance).collect(),
            load: of(|kind| kind.0).map(|layer| layer.load.clone()).collect(),
        }
    }

    /// The losses of the model and of a table of byte pairs over all held-out windows.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn evaluate(&mut self) -> Result<Evaluation, MoeTrainError> {
        let (corpus, options) = (self.setup.common.corpus, &self.setup.common.options);
        let (rows, seq) = (options.batch, options.seq);
        let (mut sum, mut bytes) = (0.0, 0);
        let mut pairs: Vec<(u8, u8)> = Vec::new();
        for windows in corpus.held_out_batches(rows, seq) {
            let batch = self.batch(&windows)?;
            let loss = self.pipeline.eval(batch).map_err(TrainError::from)?.loss.unwrap_or(f64::NAN);
            sum += loss * windows.inputs.len() as f64;
            bytes += windows.inputs.len();
            pairs.extend(windows.pairs());
        }
        let bigram = crate::bigram::Bigram::fit(corpus.training()).loss(pairs.into_iter());
        Ok(Evaluation { loss: sum / bytes as f64, bigram, bytes })
    }

    /// What the ranks did when in the last few steps, end to end.
    pub fn timeline(&self) -> Track {
        let first = self.done + 1 - self.recent.len().min(self.done);
        let name = format!("{}, measured, steps {first} to {}", self.setup.common.plan.name(), self.done);
        end_to_end(name, self.recent.iter().map(|report| (report.seconds, &report.timeline)))
    }

    /// What the last few steps cost, and what the simulator expects of one step at these costs.
    ///
    /// # Errors
    /// If no step has run yet, or a rank fails.
    pub fn predicted(&mut self) -> Result<(Profile, Track), MoeTrainError> {
        let plan = &self.setup.common.plan;
        let profile = measured_profile(plan.placement(), self.recent.make_contiguous()).map_err(TrainError::from)?;
        let links = self.pipeline.measure_links().map_err(TrainError::from)?;
        let profile = profile.with_links(links).map_err(TrainError::from)?;
        let simulation = simulate(plan, &profile, &SimulateOptions::default()).map_err(TrainError::from)?;
        let name = format!("{}, simulated from the measured actions, one step", plan.name());
        Ok((profile, simulation.track(name)))
    }

    fn batch(&self, windows: &Windows) -> Result<Batch, StructureError> {
        let tokens = |bytes: &[u8]| tokens(bytes, windows.seq, &self.setup.common.device);
        let inputs = tokens(&windows.inputs);
        let documents = match self.setup.bos {
            Some(bos) => documents(inputs.clone(), i64::from(bos)),
            None => Tensor::zeros_like(&inputs),
        };
        let batch = Batch::new(MoeSignal::Tokens(inputs)).target(tokens(&windows.targets));
        Structure::new().by_sample(DOCUMENTS, AnyTensor::new(documents)).attach(batch, windows.rows())
    }
}
