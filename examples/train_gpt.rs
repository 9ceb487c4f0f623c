//! Trains a byte-level GPT on Shakespeare's plays, its layers cut into stages over two ranks.
//!
//! `cargo run --release -p pipeline-examples --example train_gpt` takes half a minute to a minute on two cores; with
//! `-- --long`, a few minutes for a better model. `-- --help` lists all flags.
//!
//! Read it from top to bottom: `train` is the whole run, [`Trainer::over`] builds the pipeline, [`Trainer::step`]
//! is one step. The model is in `src/gpt`, the text in `src/corpus.rs`, the flags in `src/options.rs`.
//!
//! Ranks are threads of this process, or processes. Over MPI (feature `mpi`), start them with
//! `mpirun -n 4 target/release/examples/train_gpt --link mpi`, or with `--processes 4`, which calls `mpirun`; with
//! `--save FOLDER --save-every 50 --restart` training then continues when a process is lost. Over TCP, torchrun or
//! Slurm start them with `--link tcp`, or with `--link nccl` (feature `nccl`) if each has a GPU.

use burn::optim::AdamWConfig;
use burn_pipeline::execute::Tuning;
use burn_pipeline::link::Link;
use burn_pipeline::stage::Batch;
use burn_pipeline::train::{Builder, EvalResults, Pipeline};
use clap::Parser;
use pipeline_examples::console::Console;
use pipeline_examples::corpus::Windows;
use pipeline_examples::cut::{Cut, CutError, measured};
use pipeline_examples::device::DeviceName;
use pipeline_examples::generate::{Sampling, generate};
use pipeline_examples::gpt::precision;
use pipeline_examples::options::Options;
use pipeline_examples::program::{self, RunError};
use pipeline_examples::saved::RunFlags;
use pipeline_examples::setup::Setup;
use pipeline_examples::training::{Evaluation, StepRecord, TrainError, Training, held_out, record, tokens};
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Runs the program.
pub fn main() -> ExitCode {
    ExitCode::from(run(std::env::args_os(), &mut std::io::stdout(), &mut std::io::stderr()))
}

/// Checks the flags and trains, on threads or as one of several processes; returns the exit code.
pub fn run(arguments: impl Iterator<Item = OsString>, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let options = Options::try_parse_from(arguments).map_err(RunError::from);
    program::run(options.and_then(|options| Ok(options.check()?)), train, out, err)
}

/// The whole run: builds the pipeline, trains, evaluates, writes the timeline and a sample.
fn train(setup: Setup, link: Option<Box<dyn Link>>, mut console: Console<'_>) -> Result<(), RunError> {
    let mut trainer = Trainer::over(setup.clone(), link)?;
    console.introduce(&setup, setup.model.parameters())?;
    if trainer.done() > 0 {
        console.line(format_args!("resuming after step {}", trainer.done()))?;
    }

    let (before, began) = (trainer.done(), Instant::now());
    let mut log = console.steps(setup.options.steps);
    while let Some(record) = trainer.step()? {
        log.step(&record)?;
        trainer.save_if_due()?;
    }
    drop(log);

    console.elapsed(&setup, trainer.done() - before, began.elapsed().as_secs_f64())?;
    if setup.auto.is_some() {
        console.line(format_args!("\nthe schedule: {}\n", trainer.training.decision()))?;
    }
    console.held_out(trainer.evaluate()?)?;
    if let Some(measured) = trainer.training.measured()? {
        console.timeline(&setup.trace, &measured)?;
    }
    if let Some(folder) = &setup.options.save {
        console
            .line(format_args!("checkpoints: {} (for --resume, and for `generate_gpt --from`)", folder.display()))?;
    }
    let sampling = Sampling { length: 400, texts: 1, temperature: 0.8, seed: setup.options.seed };
    for text in trainer.sample(b"\n", &sampling)? {
        console.sample(sampling.temperature, &text)?;
    }
    Ok(())
}

/// A GPT in training, one step at a time.
///
/// The loss of every step depends on the seed, the batch and the model's size. It depends on the schedule and its
/// cut only if they change the order in which numbers are added.
#[derive(Debug)]
pub struct Trainer {
    setup: Setup,
    training: Training,
}

impl Trainer {
    /// Builds the pipeline on threads of this process.
    ///
    /// # Errors
    /// As [`Trainer::over`].
    pub fn new(setup: Setup) -> Result<Self, TrainError> {
        Self::over(setup, None)
    }

    /// Builds the pipeline; with a link, this process is one rank.
    ///
    /// # Errors
    /// Returns a [`TrainError`] if the model cannot be cut as requested, and as [`Training::new`].
    pub fn over(setup: Setup, link: Option<Box<dyn Link>>) -> Result<Self, TrainError> {
        let (options, model) = (&setup.options, setup.model.clone());
        // A shorter average of squared gradients and a strong weight decay suit short runs over small batches.
        let optimizer = AdamWConfig::new().with_beta_2(0.99).with_epsilon(1e-8).with_weight_decay(0.1);
        let builder = Pipeline::builder()
            .model(format!("{model:?}"))
            .optimizer(move || optimizer.init())
            .clip_norm(1.0)
            .devices(vec![setup.device.clone()])
            .data_parallel(options.data_parallel)
            .sharded(options.sharded)
            .compile(options.compile.unwrap_or(options.device == DeviceName::Flex))
            // The model and its loss read nothing from the host that changes.
            .tuning(Tuning { record_every: 64, ..Tuning::default() })
            .timeout(Duration::from_secs(options.timeout))
            .threads(options.threads);
        let builder = match options.precision.half() {
            Some(half) => builder.precision(precision(half)),
            None => builder,
        };
        let builder = cut(&setup, builder)?;
        let training = Training::new(builder, setup.model.all_layers(), &setup, &RunFlags::of(&setup.options), link)?;
        Ok(Self { setup, training })
    }

    /// The number of steps done, including those before a checkpoint.
    pub fn done(&self) -> usize {
        self.training.done()
    }

    /// The next step; `None` once all are done.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn step(&mut self) -> Result<Option<StepRecord>, TrainError> {
        let Some(&learning_rate) = self.setup.rates.get(self.done()) else { return Ok(None) };
        let options = &self.setup.options;
        let windows = self.setup.corpus.batch(options.seed, self.done(), options.batch, options.seq);
        let report = self.training.step(batch(&self.setup, &windows), learning_rate)?;
        Ok(Some(record(self.done(), report.loss, learning_rate, windows.inputs.len(), &report)))
    }

    /// Saves a checkpoint if one is due; see [`Training::save_if_due`].
    ///
    /// # Errors
    /// If a rank fails, or the checkpoint cannot be written.
    pub fn save_if_due(&mut self) -> Result<(), TrainError> {
        self.training.save_if_due(&RunFlags::of(&self.setup.options))
    }

    /// The losses of the model and of a byte-pair table over held-out windows.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn evaluate(&mut self) -> Result<Evaluation, TrainError> {
        let (setup, pipeline) = (&self.setup, self.training.pipeline());
        let options = &setup.options;
        held_out(&setup.corpus, options.batch, options.seq, options.held_out, |windows| {
            let report = pipeline.eval_for(batch(setup, windows), EvalResults::Loss)?;
            Ok(report.loss.unwrap_or(f64::NAN))
        })
    }

    /// Texts that continue `prompt`.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn sample(&mut self, prompt: &[u8], sampling: &Sampling) -> Result<Vec<Vec<u8>>, TrainError> {
        let setup = &self.setup;
        generate(self.training.pipeline(), &setup.device, setup.options.seq, prompt, sampling)
    }

    /// The names of each stage's weights, in model order.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn stage_weights(&mut self) -> Result<Vec<Vec<String>>, TrainError> {
        let stages = self.training.pipeline().named_weights()?.into_iter();
        Ok(stages.map(|stage| stage.into_iter().flat_map(|weight| weight.names).collect()).collect())
    }
}

/// Sets the model, and its cut: evenly many blocks in each stage, or as requested. For `--cut optimal`, measures the
/// layers on the first windows of the text.
fn cut(setup: &Setup, builder: Builder) -> Result<Builder, CutError> {
    let (options, model) = (&setup.options, &setup.model);
    let builder = builder.layers(model.model().recomputed(options.recompute));
    let cut = options.cut.partition(model, setup.plan.placement(), options.costs.as_deref(), |kinds| {
        let rows = options.batch.div_ceil(setup.plan.total_microbatches() * options.data_parallel);
        let windows = setup.corpus.batch(options.seed, 0, rows, options.seq);
        measured(&builder, kinds, batch(setup, &windows))
    })?;
    // `--schedule auto` finds the cut.
    Ok(if setup.auto.is_some() && options.cut == Cut::Even { builder } else { builder.cut(cut) })
}

/// Windows of text as the first stage's input and the loss's target.
fn batch(setup: &Setup, windows: &Windows) -> Batch {
    let tokens = |bytes: &[u8]| tokens(bytes, windows.seq, &setup.device);
    Batch::new(tokens(&windows.inputs)).target(tokens(&windows.targets))
}
