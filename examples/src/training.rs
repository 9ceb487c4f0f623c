//! Code that both trainings share: a pipeline in training with its checkpoints and its last measured steps, and the
//! loss on held-out text.

use crate::bigram::Bigram;
use crate::corpus::{Corpus, Windows};
use crate::cut::CutError;
use crate::moe::gpt::MoeGptError;
use crate::saved::{OtherRun, same_flags};
use crate::setup::Setup;
use crate::traces::{Measured, end_to_end};
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_pipeline::cost::ProfileError;
use burn_pipeline::execute::ExecuteError;
use burn_pipeline::link::Link;
use burn_pipeline::payload::BoundaryError;
use burn_pipeline::plan::Plan;
use burn_pipeline::simulate::{SimulateError, SimulateOptions, simulate};
use burn_pipeline::stage::Batch;
use burn_pipeline::trace::Track;
use burn_pipeline::train::{
    AutoOptions, AutoPipeline, BuildError, Builder, CheckpointError, Checkpoints, Decision, Pipeline, PipelineError,
    StepReport,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;

/// The number of steps whose timeline is kept.
const KEPT_STEPS: usize = 3;
/// The number of checkpoints that are kept.
const KEPT_CHECKPOINTS: usize = 3;

/// Why training stopped.
#[derive(thiserror::Error)]
pub enum TrainError {
    /// The pipeline cannot be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The model cannot be cut as requested.
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
    /// The last stage's output has the wrong type.
    #[error(transparent)]
    Output(#[from] BoundaryError),
    /// The last stage's output is not scores.
    #[error("the last stage's output is tokens, not scores")]
    NoScores,
    /// No step has run yet that measured the costs of actions.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The plan cannot be simulated.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
    /// The model with experts is invalid.
    #[error(transparent)]
    Moe(#[from] MoeGptError),
}

burn_pipeline::debug_as_text!(TrainError);

impl TrainError {
    /// Returns true if a rank failed or was lost, so that the run can resume from its last checkpoint.
    pub fn is_of_a_rank(&self) -> bool {
        let of_a_rank = |error: &PipelineError| match error {
            PipelineError::Rank(error) => !matches!(error, ExecuteError::Handshake { .. }),
            PipelineError::Undone { .. } | PipelineError::HalfStepped(_) | PipelineError::Uneven(_) => true,
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

/// The printed record of a step; a line of `--log json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepRecord {
    /// The step, from 1.
    pub step: usize,
    /// The loss over the batch before the step, in nats per byte.
    pub loss: f64,
    /// The learning rate.
    pub learning_rate: f64,
    /// The norm of all gradients before clipping.
    pub gradient_norm: f64,
    /// Seconds from the batch to the stepped weights.
    pub step_seconds: f64,
    /// Bytes of text per second.
    pub tokens_per_second: f64,
    /// Why the step was skipped, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
}

/// The losses on held-out text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    /// The model's loss, in nats per byte.
    pub loss: f64,
    /// The loss of a byte-pair table over the same bytes.
    pub bigram: f64,
    /// The number of predicted bytes.
    pub bytes: usize,
}

/// A pipeline in training.
#[derive(Debug)]
pub struct Training {
    pipeline: AutoPipeline,
    /// The current plan.
    plan: Plan,
    checkpoints: Option<Checkpoints>,
    save_every: Option<usize>,
    steps: usize,
    done: usize,
    recent: VecDeque<StepReport>,
}

impl Training {
    /// Builds the pipeline, with the schedule of the flags or one that is chosen after a few steps. The stages are
    /// built on their ranks; a chosen schedule may cut the model's `layers` in another way. With a link, this
    /// process is one rank, and all processes make the same calls. Resumes from the latest checkpoint, if requested
    /// and if there is one.
    ///
    /// # Errors
    /// Returns a [`TrainError`] if the plan is not legal, a rank cannot build its stages, the ranks were not
    /// started for the same job, or the checkpoint cannot be read or is of a run with other `flags`.
    pub fn new<F: Serialize + DeserializeOwned>(
        builder: Builder,
        layers: usize,
        setup: &Setup,
        flags: &F,
        link: Option<Box<dyn Link>>,
    ) -> Result<Self, TrainError> {
        let options = AutoOptions { layers: Some(layers), ..AutoOptions::default() };
        let pipeline = match (setup.auto, link) {
            (Some(size), None) => AutoPipeline::new(builder, size, options)?,
            (Some(size), Some(link)) => AutoPipeline::new_rank(builder, size, options, link)?,
            (None, link) => {
                let builder = builder.plan(setup.plan.clone());
                let pipeline = match link {
                    None => builder.clone().build()?,
                    Some(link) => builder.clone().build_rank(link)?,
                };
                AutoPipeline::fixed(pipeline)
            }
        };
        let options = &setup.options;
        let mut training = Self {
            pipeline,
            plan: setup.plan.clone(),
            checkpoints: options.save.as_ref().map(|folder| Checkpoints::new(folder).keep(KEPT_CHECKPOINTS)),
            save_every: options.save_every,
            steps: options.steps,
            done: 0,
            recent: VecDeque::new(),
        };
        if options.resume {
            training.resume(flags)?;
        }
        Ok(training)
    }

    fn resume<F: Serialize + DeserializeOwned>(&mut self, flags: &F) -> Result<(), TrainError> {
        let Some(checkpoints) = &self.checkpoints else { return Ok(()) };
        let checkpoint = match checkpoints.latest() {
            Err(CheckpointError::None { .. }) => return Ok(()),
            checkpoint => checkpoint?,
        };
        same_flags(flags, &checkpoint.beside::<F>()?, "--save")?;
        self.pipeline().load(&checkpoint)?;
        // A skipped step has used its batch.
        self.done = self.pipeline().progress().batches as usize;
        Ok(())
    }

    /// The number of steps done, including those before a checkpoint.
    pub fn done(&self) -> usize {
        self.done
    }

    /// Runs one step; keeps its timeline with those of the last few.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn step(&mut self, batch: Batch, learning_rate: f64) -> Result<StepReport, TrainError> {
        let switches = self.pipeline.switches();
        let report = self.pipeline.step(batch, learning_rate)?;
        self.done += 1;
        self.recent.push_back(report.clone());
        if self.recent.len() > KEPT_STEPS {
            self.recent.pop_front();
        }
        if self.pipeline.switches() != switches {
            // The earlier measurements are of another plan.
            self.plan = self.pipeline.current_plan()?.plan().clone();
            self.recent.clear();
        }
        Ok(report)
    }

    /// Saves a checkpoint with the run's flags after the last step and, if requested, after every N steps. It is
    /// separate from the step, so that a step is printed before it is saved: a resumed run then repeats no line.
    ///
    /// # Errors
    /// Returns a [`TrainError`] if a rank fails, or the checkpoint cannot be written.
    pub fn save_if_due(&mut self, flags: &impl Serialize) -> Result<(), TrainError> {
        let Some(checkpoints) = &self.checkpoints else { return Ok(()) };
        if self.done == self.steps || self.save_every.is_some_and(|every| self.done.is_multiple_of(every)) {
            self.pipeline.pipeline().save(checkpoints, flags)?;
        }
        Ok(())
    }

    /// The pipeline with the current schedule.
    pub fn pipeline(&mut self) -> &mut Pipeline {
        self.pipeline.pipeline()
    }

    /// The current plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// How the schedule was chosen, and why.
    pub fn decision(&self) -> &Decision {
        self.pipeline.decision()
    }

    /// The last few steps as measured, and one step as predicted by the simulator; `None` if the current plan has
    /// not run a step yet.
    ///
    /// # Errors
    /// Returns a [`TrainError`] if a rank fails.
    pub fn measured(&mut self) -> Result<Option<Measured>, TrainError> {
        let Some(last) = self.recent.back().map(|report| report.timeline.clone()) else { return Ok(None) };
        let profile = StepReport::profile(self.plan.placement(), self.recent.make_contiguous())?;
        let profile = profile.with_links(self.pipeline().measure_links()?)?;
        let predicted = simulate(&self.plan, &profile, &SimulateOptions::default())?;
        let (name, first) = (self.plan.name(), self.done + 1 - self.recent.len().min(self.done));
        let track = end_to_end(
            format!("{name}, measured, steps {first} to {}", self.done),
            self.recent.iter().map(|report| (report.seconds, &report.timeline)),
        );
        let last = Track { name: format!("measured, step {}", self.done), ..last };
        Ok(Some(Measured { plan: name.to_owned(), track, last, predicted, profile }))
    }
}

/// The printed record of a step.
pub fn record(step: usize, loss: f64, learning_rate: f64, tokens: usize, report: &StepReport) -> StepRecord {
    StepRecord {
        step,
        loss,
        learning_rate,
        gradient_norm: report.gradient_norm.unwrap_or(0.0),
        step_seconds: report.seconds,
        tokens_per_second: tokens as f64 / report.seconds,
        skipped: skipped(report),
    }
}

/// Why a step was skipped, with the loss scale that it had.
fn skipped(report: &StepReport) -> Option<String> {
    let reason = report.skipped.as_ref()?;
    Some(match report.loss_scale {
        Some(scale) => format!("{reason}; the loss scale was {scale}, and falls"),
        None => reason.to_string(),
    })
}

/// The mean of `loss` over the held-out windows of all batches of `rows`, or of the first `most`, and that of a
/// byte-pair table.
///
/// # Errors
/// Returns the error of `loss`.
pub fn held_out<E>(
    corpus: &Corpus<'_>,
    rows: usize,
    seq: usize,
    most: Option<usize>,
    mut loss: impl FnMut(&Windows) -> Result<f64, E>,
) -> Result<Evaluation, E> {
    let (mut sum, mut pairs) = (0.0, Vec::new());
    for windows in corpus.held_out_batches(rows, seq).take(most.unwrap_or(usize::MAX)) {
        sum += loss(&windows)? * windows.inputs.len() as f64;
        pairs.extend(windows.pairs());
    }
    let bytes = pairs.len();
    let bigram = Bigram::fit(corpus.training()).loss(pairs.into_iter());
    Ok(Evaluation { loss: sum / bytes as f64, bigram, bytes })
}

/// Bytes as token ids `[rows, seq]`.
pub fn tokens(bytes: &[u8], seq: usize, device: &Device) -> Tensor<2, Int> {
    let ids: Vec<i32> = bytes.iter().copied().map(i32::from).collect();
    Tensor::from_data(TensorData::new(ids, [bytes.len() / seq, seq]), device)
}
