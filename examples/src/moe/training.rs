//! A GPT with experts in training, one step at a time, and what its routers did.

use crate::corpus::Windows;
use crate::generate::{Sampling, continued};
use crate::moe::gpt::{MoeGptError, Observed};
use crate::moe::options::{MoeRunFlags, MoeSetup};
use crate::moe::sides::sides;
use crate::moe::signal::MoeSignal;
use crate::saved::same_flags;
use crate::traces::end_to_end;
use crate::training::{Evaluation, StepRecord, TrainError, choosing, given, tokens};
use burn::optim::AdamWConfig;
use burn_pipeline::cost::Profile;
use burn_pipeline::link::Link;
use burn_pipeline::plan::Plan;
use burn_pipeline::simulate::{SimulateOptions, simulate};
use burn_pipeline::stage::Batch;
use burn_pipeline::trace::Track;
use burn_pipeline::train::{
    AutoPipeline, Builder, CheckpointError, Checkpoints, Decision, Pipeline, StageContext, StepReport, Wants,
    measured_profile,
};
use burn_pipeline_moe::auxiliary::{LayerObservation, over_microbatches};
use burn_pipeline_moe::structure::StructureError;
use serde::Serialize;
use std::collections::VecDeque;
use std::time::Duration;

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
    /// There is no such model.
    #[error(transparent)]
    Model(#[from] MoeGptError),
    /// The side data does not fit the batch.
    #[error(transparent)]
    Structure(#[from] StructureError),
}

/// What a step tells; a line of `--log json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MoeStepRecord {
    /// What any training tells; the loss is that of the next token.
    #[serde(flatten)]
    pub step: StepRecord,
    /// Mean loss of the tokens after the next one; 0 where none are predicted.
    pub ahead: f64,
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
    pipeline: AutoPipeline,
    /// The plan that runs.
    plan: Plan,
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
        Self::over(setup, None)
    }

    /// As [`MoeTrainer::new`], or with this process as one rank that reaches the others through a link: all processes
    /// then make the same calls.
    ///
    /// # Errors
    /// As [`MoeTrainer::new`], and if the ranks were not started for the same job.
    pub fn over(setup: MoeSetup, link: Option<Box<dyn Link>>) -> Result<Self, MoeTrainError> {
        let kinds = setup.model.blocks()?.into_iter().map(|kind| (kind.has_experts(), kind.has_depths())).collect();
        let builder = Self::builder(&setup);
        let plan = setup.common.plan.clone();
        let pipeline = match setup.common.auto {
            Some(size) => choosing(builder, size, link),
            None => given(builder.plan(plan.clone()), link),
        };
        let pipeline = pipeline.map_err(TrainError::from)?;
        let saves = setup.common.options.save.as_ref();
        let checkpoints = saves.map(|folder| Checkpoints::new(folder).keep(KEPT_CHECKPOINTS));
        let mut trainer = Self { setup, kinds, pipeline, plan, checkpoints, done: 0, recent: VecDeque::new() };
        if trainer.setup.common.options.resume {
            trainer.resume()?;
        }
        Ok(trainer)
    }

    fn builder(setup: &MoeSetup) -> Builder {
        let (model, options) = (setup.model.clone(), &setup.common.options);
        let recompute = options.recompute;
        let optimizer = AdamWConfig::new().with_beta_2(0.99).with_epsilon(1e-8).with_weight_decay(0.1);
        let builder = Pipeline::builder()
            .model(format!("{model:?}"))
            .optimizer(move || optimizer.init())
            .clip_norm(CLIP_NORM)
            .devices(vec![setup.common.device.clone()])
            .data_parallel(options.data_parallel)
            .sharded(options.sharded)
            .timeout(Duration::from_secs(options.timeout))
            .threads(options.threads);
        let builder = model.shared().into_iter().fold(builder, Builder::share);
        builder.stages(move |at| match model.part(at).and_then(|part| model.stage(part, at)) {
            Ok(stage) => stage.recomputed(recompute),
            Err(error) => panic!("the model was checked before: {error}"),
        })
    }

    fn resume(&mut self) -> Result<(), TrainError> {
        let Some(checkpoints) = &self.checkpoints else { return Ok(()) };
        let checkpoint = match checkpoints.latest() {
            Err(CheckpointError::None { .. }) => return Ok(()),
            checkpoint => checkpoint?,
        };
        same_flags(&self.setup.flags, &checkpoint.beside::<MoeRunFlags>()?)?;
        self.pipeline.pipeline().load(&checkpoint)?;
        self.done = self.pipeline.pipeline().progress().steps as usize;
        Ok(())
    }

    /// Steps that are done, those before a checkpoint among them.
    pub fn done(&self) -> usize {
        self.done
    }

    /// Saves a checkpoint after the last step and after every so many. It is apart from the step, so that what is saved can
    /// be told before: whoever goes on from a checkpoint then misses no line.
    ///
    /// # Errors
    /// If a rank fails, or the checkpoint cannot be written.
    pub fn save_if_due(&mut self) -> Result<(), MoeTrainError> {
        let Some(checkpoints) = &self.checkpoints else { return Ok(()) };
        let every = self.setup.common.options.save_every.is_some_and(|every| self.done.is_multiple_of(every));
        if every || self.done == self.setup.common.rates.len() {
            self.pipeline.pipeline().save(checkpoints, &self.setup.flags).map_err(TrainError::from)?;
        }
        Ok(())
    }

    /// What is trained, and how.
    pub fn setup(&self) -> &MoeSetup {
        &self.setup
    }

    /// How the schedule was chosen, and why.
    pub fn decision(&self) -> &Decision {
        self.pipeline.decision()
    }

    /// Has the plan that runs now run a step?
    pub fn is_measured(&self) -> bool {
        !self.recent.is_empty()
    }

    /// Layers with experts that are not in the last stage.
    ///
    /// # Errors
    /// If the model cannot be cut as the plan is.
    pub fn inner_layers(&self) -> Result<usize, MoeTrainError> {
        let (stages, device) = (self.plan.stages(), self.setup.common.device.clone());
        let last = StageContext { index: stages - 1, stages, rank: 0, device };
        let start = self.setup.model.layers(&last)?.start;
        Ok(self.kinds[..start].iter().filter(|kind| kind.0).count())
    }

    /// The next step; `None` once all are done.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn step(&mut self) -> Result<Option<MoeStepRecord>, MoeTrainError> {
        let Some(&learning_rate) = self.setup.common.rates.get(self.done) else { return Ok(None) };
        let options = &self.setup.common.options;
        let windows = self.setup.common.corpus.batch(options.seed, self.done, options.batch, options.seq);
        let batch = self.batch(&windows)?;
        let measuring = matches!(self.pipeline.decision(), Decision::Measuring);
        let report = self.pipeline.step(batch, learning_rate).map_err(TrainError::from)?;
        self.done += 1;
        let observed: Vec<Observed> = report.observed.iter().map(|numbers| self.setup.model.read(numbers)).collect();
        let step = StepRecord {
            step: self.done,
            loss: self.next_loss(report.loss, &observed, windows.rows()),
            learning_rate,
            gradient_norm: report.gradient_norm.unwrap_or(0.0),
            step_seconds: report.seconds,
            tokens_per_second: windows.inputs.len() as f64 / report.seconds,
        };
        let record = self.record(step, &observed, windows.rows());
        self.recent.push_back(report);
        if self.recent.len() > KEPT_STEPS {
            self.recent.pop_front();
        }
        if measuring && let Decision::Switched { planned, .. } = self.pipeline.decision() {
            // What was measured so far is of another plan.
            self.plan = planned.best.plan.plan().clone();
            self.recent.clear();
        }
        Ok(Some(record))
    }

    /// The loss of the next token alone, over all samples.
    fn next_loss(&self, whole: f64, observed: &[Observed], samples: usize) -> f64 {
        if self.setup.model.ahead.is_empty() { whole } else { over_samples(observed, samples, |one| one.next) }
    }

    fn record(&self, step: StepRecord, observed: &[Observed], samples: usize) -> MoeStepRecord {
        let rows: Vec<&[LayerObservation]> = observed.iter().map(|one| &*one.layers).collect();
        let layers = &over_microbatches(&rows);
        let of = |has: fn(&(bool, bool)) -> bool| {
            layers.iter().zip(&self.kinds).filter(move |(_, kind)| has(kind)).map(|(layer, _)| layer)
        };
        let mean = |values: Vec<f64>| values.iter().fold(0.0, |sum, value| sum + value) / values.len().max(1) as f64;
        let choices: f64 = of(|kind| kind.0).flat_map(|layer| layer.load.iter()).sum();
        MoeStepRecord {
            step,
            ahead: over_samples(observed, samples, |one| mean(one.ahead.clone())),
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
            let report = self.pipeline.pipeline().eval_for(batch, Wants::Loss).map_err(TrainError::from)?;
            let observed: Vec<Observed> =
                report.observed.iter().map(|numbers| self.setup.model.read(numbers)).collect();
            let loss = self.next_loss(report.loss.unwrap_or(f64::NAN), &observed, windows.rows());
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
        let name = format!("{}, measured, steps {first} to {}", self.plan.name(), self.done);
        end_to_end(name, self.recent.iter().map(|report| (report.seconds, &report.timeline)))
    }

    /// What the last few steps cost, and what the simulator expects of one step at these costs.
    ///
    /// # Errors
    /// If no step has run yet, or a rank fails.
    pub fn predicted(&mut self) -> Result<(Profile, Track), MoeTrainError> {
        let plan = &self.plan;
        let profile = measured_profile(plan.placement(), self.recent.make_contiguous()).map_err(TrainError::from)?;
        let links = self.pipeline.pipeline().measure_links().map_err(TrainError::from)?;
        let profile = profile.with_links(links).map_err(TrainError::from)?;
        let simulation = simulate(plan, &profile, &SimulateOptions::default()).map_err(TrainError::from)?;
        let name = format!("{}, simulated from the measured actions, one step", plan.name());
        Ok((profile, simulation.track(name)))
    }

    /// Texts that continue a byte, repeated so often that the tokens ahead have room. A mixture of depths chooses among
    /// the bytes so far.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn sample(&mut self, begin: u8, sampling: &Sampling) -> Result<Vec<Vec<u8>>, MoeTrainError> {
        let prompt = vec![begin; 1 + self.setup.model.ahead.len()];
        let (setup, pipeline) = (&self.setup, self.pipeline.pipeline());
        continued(setup.common.options.seq, &prompt, sampling, |seen| {
            let report = pipeline.eval(inputs(setup, seen)?).map_err(TrainError::from)?;
            match report.output().map_err(TrainError::from)? {
                MoeSignal::Scores(scores) => Ok(scores.next),
                MoeSignal::Tokens(_) | MoeSignal::Hidden(_) => Err(TrainError::NoScores.into()),
            }
        })
    }

    fn batch(&self, windows: &Windows) -> Result<Batch, StructureError> {
        let target = tokens(&windows.targets, windows.seq, &self.setup.common.device);
        Ok(inputs(&self.setup, windows)?.target(target))
    }
}

/// Windows with their side data, without targets.
fn inputs(setup: &MoeSetup, windows: &Windows) -> Result<Batch, StructureError> {
    let device = &setup.common.device;
    let batch = Batch::new(MoeSignal::Tokens(tokens(&windows.inputs, windows.seq, device)));
    sides(&setup.model, windows, setup.bos, device).attach(batch, windows.rows())
}

/// The mean over samples of what microbatches observed: their sizes differ by one at most, larger ones first.
fn over_samples(observed: &[Observed], samples: usize, value: impl Fn(&Observed) -> f64) -> f64 {
    let count = observed.len().max(1);
    let size = |place: usize| samples / count + usize::from(place < samples % count);
    let sum: f64 = observed.iter().enumerate().map(|(place, one)| value(one) * size(place) as f64).sum();
    sum / samples.max(1) as f64
}
