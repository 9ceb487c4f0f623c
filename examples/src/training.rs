//! A GPT in training: pipeline, data and learning rate, one step at a time.
//!
//! Guarantees: the loss of every step depends on the seed, the batch and the model's size; on the schedule and
//! its cut only where they change the order in which numbers are added.

use crate::bigram::Bigram;
use crate::corpus::Windows;
use crate::cut::{CutError, measured};
use crate::generate::{Sampling, generate};
use crate::gpt::Signal;
use crate::options::Setup;
use crate::saved::{OtherRun, RunFlags};
use crate::traces::end_to_end;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_pipeline::cost::{Partition, Profile, ProfileError};
use burn_pipeline::execute::ExecuteError;
use burn_pipeline::link::Link;
use burn_pipeline::plan::Plan;
use burn_pipeline::schedule::Size;
use burn_pipeline::simulate::{SimulateError, SimulateOptions, simulate};
use burn_pipeline::stage::{Batch, BoundaryError};
use burn_pipeline::trace::Track;
use burn_pipeline::train::{
    AutoOptions, AutoPipeline, BuildError, Builder, CheckpointError, Checkpoints, Decision, Pipeline, PipelineError,
    StepReport, Wants, measured_profile,
};
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
pub enum TrainError {
    /// The pipeline cannot be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The model cannot be cut as told.
    #[error(transparent)]
    Cut(#[from] CutError),
    /// A step or an evaluation failed.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// A checkpoint cannot be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The checkpoint is of another run.
    #[error(transparent)]
    OtherRun(#[from] OtherRun),
    /// What the last stage put out is not the model's output.
    #[error(transparent)]
    Output(#[from] BoundaryError),
    /// The last stage put out no scores.
    #[error("the last stage put out tokens, not scores")]
    NoScores,
    /// No step has run that could say what actions cost.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The plan cannot be simulated.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
}

impl TrainError {
    /// Did a rank fail, or was one lost? What was saved can then be taken up again.
    pub fn is_of_a_rank(&self) -> bool {
        let of_a_rank = |error: &PipelineError| match error {
            PipelineError::Rank(error) => !matches!(error, ExecuteError::Handshake { .. }),
            PipelineError::Silent { .. } | PipelineError::Closed(_) => true,
            _ => false,
        };
        match self {
            TrainError::Pipeline(error) | TrainError::Checkpoint(CheckpointError::Pipeline(error)) => of_a_rank(error),
            TrainError::Build(BuildError::Stages(error)) => of_a_rank(error),
            _ => false,
        }
    }
}

/// What a step tells; a line of `--log json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepRecord {
    /// The step, from 1.
    pub step: usize,
    /// The loss over the batch before the step, in nats a byte.
    pub loss: f64,
    /// The learning rate.
    pub learning_rate: f64,
    /// The norm of all gradients before clipping.
    pub gradient_norm: f64,
    /// Seconds from the batch to the stepped weights.
    pub step_seconds: f64,
    /// Bytes of text a second.
    pub tokens_per_second: f64,
}

/// Losses on held-out text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    /// The model's loss, in nats a byte.
    pub loss: f64,
    /// The loss of a table of byte pairs over the same bytes.
    pub bigram: f64,
    /// Bytes that were predicted.
    pub bytes: usize,
}

/// A GPT in training.
#[derive(Debug)]
pub struct Trainer {
    setup: Setup,
    pipeline: AutoPipeline,
    /// The plan that runs.
    plan: Plan,
    checkpoints: Option<Checkpoints>,
    done: usize,
    recent: VecDeque<StepReport>,
}

impl Trainer {
    /// Builds the pipeline: the stages are made on their ranks. Goes on from the latest checkpoint, if that was asked
    /// for and there is one.
    ///
    /// # Errors
    /// If the plan is not legal, the model cannot be cut as told, a rank cannot make its stages, or the checkpoint cannot
    /// be read or is of another run.
    pub fn new(setup: Setup) -> Result<Self, TrainError> {
        Self::over(setup, None)
    }

    /// As [`Trainer::new`], or with this process as one rank that reaches the others through a link: all processes
    /// then make the same calls.
    ///
    /// # Errors
    /// As [`Trainer::new`], and if the ranks were not started for the same job.
    pub fn over(setup: Setup, link: Option<Box<dyn Link>>) -> Result<Self, TrainError> {
        let (options, model, recompute) = (&setup.options, setup.model.clone(), setup.options.recompute);
        // Moments of gradients over a hundred steps and a clear weight decay suit short runs over small batches.
        let optimizer = AdamWConfig::new().with_beta_2(0.99).with_epsilon(1e-8).with_weight_decay(0.1);
        let builder = Pipeline::builder()
            .model(format!("{model:?}"))
            .optimizer(move || optimizer.init())
            .clip_norm(CLIP_NORM)
            .devices(vec![setup.device.clone()])
            .data_parallel(options.data_parallel)
            .sharded(options.sharded)
            .timeout(Duration::from_secs(options.timeout))
            .threads(options.threads);
        let cut = cut(&setup, &builder)?;
        let builder = builder.stages(move |at| {
            let stage = match &cut {
                None => model.stage(at),
                Some(cut) => model.stage_of(at, cut),
            };
            stage.recomputed(recompute)
        });
        let pipeline = match setup.auto {
            Some(size) => choosing(builder, size, link)?,
            None => given(builder.plan(setup.plan.clone()), link)?,
        };
        let checkpoints = options.save.as_ref().map(|folder| Checkpoints::new(folder).keep(KEPT_CHECKPOINTS));
        let plan = setup.plan.clone();
        let mut trainer = Self { pipeline, plan, checkpoints, done: 0, recent: VecDeque::new(), setup };
        if trainer.setup.options.resume {
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
        RunFlags::of(&self.setup.options).same_as(&checkpoint.beside()?)?;
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
    pub fn save_if_due(&mut self) -> Result<(), TrainError> {
        let Some(checkpoints) = &self.checkpoints else { return Ok(()) };
        let every = self.setup.options.save_every.is_some_and(|every| self.done.is_multiple_of(every));
        if every || self.done == self.setup.rates.len() {
            self.pipeline.pipeline().save(checkpoints, &RunFlags::of(&self.setup.options))?;
        }
        Ok(())
    }

    /// What is trained, and how.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// The next step; `None` once all are done.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn step(&mut self) -> Result<Option<StepRecord>, TrainError> {
        let Some(&learning_rate) = self.setup.rates.get(self.done) else { return Ok(None) };
        let options = &self.setup.options;
        let windows = self.setup.corpus.batch(options.seed, self.done, options.batch, options.seq);
        let switches = self.pipeline.switches();
        let report = self.pipeline.step(self.batch(&windows), learning_rate)?;
        self.done += 1;
        let record = StepRecord {
            step: self.done,
            loss: report.loss,
            learning_rate,
            gradient_norm: report.gradient_norm.unwrap_or(0.0),
            step_seconds: report.seconds,
            tokens_per_second: windows.inputs.len() as f64 / report.seconds,
        };
        self.recent.push_back(report);
        if self.recent.len() > KEPT_STEPS {
            self.recent.pop_front();
        }
        if self.pipeline.switches() != switches {
            // What was measured so far is of another plan.
            self.plan = self.pipeline.running()?.plan().clone();
            self.recent.clear();
        }
        Ok(Some(record))
    }

    /// How the schedule was chosen, and why.
    pub fn decision(&self) -> &Decision {
        self.pipeline.decision()
    }

    /// Has the plan that runs now run a step?
    pub fn is_measured(&self) -> bool {
        !self.recent.is_empty()
    }

    /// The losses of the model and of a table of byte pairs over all held-out windows.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn evaluate(&mut self) -> Result<Evaluation, TrainError> {
        let (corpus, rows, seq) = (self.setup.corpus, self.setup.options.batch, self.setup.options.seq);
        let (mut sum, mut bytes) = (0.0, 0);
        for windows in corpus.held_out_batches(rows, seq) {
            let batch = self.batch(&windows);
            let loss = self.pipeline.pipeline().eval_for(batch, Wants::Loss)?.loss.unwrap_or(f64::NAN);
            sum += loss * windows.inputs.len() as f64;
            bytes += windows.inputs.len();
        }
        let pairs: Vec<(u8, u8)> =
            corpus.held_out_batches(rows, seq).flat_map(|w| w.pairs().collect::<Vec<_>>()).collect();
        let bigram = Bigram::fit(corpus.training()).loss(pairs.into_iter());
        Ok(Evaluation { loss: sum / bytes as f64, bigram, bytes })
    }

    /// Texts that continue `prompt`.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn sample(&mut self, prompt: &[u8], sampling: &Sampling) -> Result<Vec<Vec<u8>>, TrainError> {
        generate(self.pipeline.pipeline(), &self.setup.device, self.setup.options.seq, prompt, sampling)
    }

    /// What the ranks did when in the last few steps, end to end.
    pub fn timeline(&self) -> Track {
        let first = self.done + 1 - self.recent.len().min(self.done);
        let name = format!("{}, measured, steps {first} to {}", self.plan.name(), self.done);
        end_to_end(name, self.recent.iter().map(|report| (report.seconds, &report.timeline)))
    }

    /// The names of each stage's weights, in model order.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn stage_weights(&mut self) -> Result<Vec<Vec<String>>, TrainError> {
        let stages = self.pipeline.pipeline().named_weights()?.into_iter();
        Ok(stages.map(|stage| stage.into_iter().flat_map(|weight| weight.names).collect()).collect())
    }

    /// What the last few steps cost, and the links between ranks.
    ///
    /// # Errors
    /// If no step has run yet, or a rank fails.
    pub fn profile(&mut self) -> Result<Profile, TrainError> {
        let profile = measured_profile(self.plan.placement(), self.recent.make_contiguous())?;
        Ok(profile.with_links(self.pipeline.pipeline().measure_links()?)?)
    }

    /// What the simulator expects of one step at these costs.
    ///
    /// # Errors
    /// If the profile is of another model.
    pub fn predicted(&self, profile: &Profile) -> Result<Track, TrainError> {
        let simulation = simulate(&self.plan, profile, &SimulateOptions::default())?;
        Ok(simulation.track(format!("{}, simulated from the measured actions, one step", self.plan.name())))
    }

    fn batch(&self, windows: &Windows) -> Batch {
        batch(windows, &self.setup.device)
    }
}

fn batch(windows: &Windows, device: &Device) -> Batch {
    let tokens = |bytes: &[u8]| tokens(bytes, windows.seq, device);
    Batch::new(Signal::Tokens(tokens(&windows.inputs))).target(tokens(&windows.targets))
}

/// Where the model is cut; `None` where blocks are counted. Layers are measured on the first windows of the text.
fn cut(setup: &Setup, builder: &Builder) -> Result<Option<Partition>, CutError> {
    let options = &setup.options;
    options.cut.partition(&setup.model, setup.plan.placement(), options.costs.as_deref(), |kinds| {
        let rows = options.batch.div_ceil(setup.plan.total_microbatches());
        let windows = setup.corpus.batch(options.seed, 0, rows, options.seq);
        measured(&setup.model, builder, kinds, batch(&windows, &setup.device))
    })
}

/// A pipeline whose schedule is given.
pub(crate) fn given(builder: Builder, link: Option<Box<dyn Link>>) -> Result<AutoPipeline, BuildError> {
    let pipeline = match link {
        None => builder.clone().build()?,
        Some(link) => builder.clone().build_rank(link)?,
    };
    Ok(AutoPipeline::given(builder, pipeline))
}

/// A pipeline that chooses its schedule after a few steps.
pub(crate) fn choosing(builder: Builder, size: Size, link: Option<Box<dyn Link>>) -> Result<AutoPipeline, BuildError> {
    match link {
        None => AutoPipeline::new(builder, size, AutoOptions::default()),
        Some(link) => AutoPipeline::over(builder, size, AutoOptions::default(), link),
    }
}

/// Bytes as token ids `[rows, seq]`.
pub(crate) fn tokens(bytes: &[u8], seq: usize, device: &Device) -> Tensor<2, Int> {
    let ids: Vec<i32> = bytes.iter().copied().map(i32::from).collect();
    Tensor::from_data(TensorData::new(ids, [bytes.len() / seq, seq]), device)
}
