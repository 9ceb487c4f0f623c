//! Trains a byte-level GPT with blocks of experts on Shakespeare's plays, its layers cut into stages over two
//! ranks. Every stage injects its routers' auxiliary losses.
//!
//! `cargo run --release -p pipeline-examples --example train_moe` takes a minute or two on two cores; `-- --help`
//! lists all flags. Ranks are threads or processes, as in `train_gpt`.
//!
//! Read it from top to bottom: `train` is the whole run, [`MoeTrainer::over`] builds the pipeline,
//! [`MoeTrainer::step`] is one step. The model and its stages are in `src/moe/gpt.rs` and `src/moe/part.rs`, the
//! flags in `src/moe/options.rs`, the side data of a batch in `src/moe/sides.rs`.

use burn::optim::AdamWConfig;
use burn_pipeline::link::Link;
use burn_pipeline::stage::Batch;
use burn_pipeline::train::{Builder, EvalResults, Pipeline, StageContext};
use pipeline_examples::console::Console;
use pipeline_examples::corpus::Windows;
use pipeline_examples::generate::{Sampling, continued};
use pipeline_examples::moe::expert_load;
use pipeline_examples::moe::gpt::Injection;
use pipeline_examples::moe::load_curves::{self, LoadCurve};
use pipeline_examples::moe::options::{MoeOptions, MoeSetup};
use pipeline_examples::moe::record::{MoeStepRecord, Observations};
use pipeline_examples::moe::sides::with_sides;
use pipeline_examples::moe::signal::MoeSignal;
use pipeline_examples::program::{self, RunError};
use pipeline_examples::traces::TraceError;
use pipeline_examples::training::{Evaluation, TrainError, Training, held_out, record, tokens};
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The number of last steps over which the experts' load is reported.
const LAST: usize = 50;

/// Runs the program.
pub fn main() -> ExitCode {
    ExitCode::from(run(std::env::args_os(), &mut std::io::stdout(), &mut std::io::stderr()))
}

/// Checks the flags and trains, on threads or as one of several processes; returns the exit code.
pub fn run(arguments: impl Iterator<Item = OsString>, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let options = MoeOptions::from_arguments(arguments).map_err(RunError::from);
    program::run(options.and_then(|options| Ok(options.check()?)), train, out, err)
}

/// The whole run: builds the pipeline, trains, evaluates, and writes the timeline, the experts' load and a sample.
/// With `--curves`, three trainings.
fn train(setup: MoeSetup, link: Option<Box<dyn Link>>, mut console: Console<'_>) -> Result<(), RunError> {
    if let Some(path) = &setup.curves {
        return curves(&setup, path, &mut console);
    }
    let mut trainer = MoeTrainer::over(setup.clone(), link)?;
    let began = Instant::now();
    let records = all_steps(&mut trainer, &mut console)?;

    console.elapsed(&setup.common, records.len(), began.elapsed().as_secs_f64())?;
    if setup.common.auto.is_some() {
        console.line(format_args!("\nthe schedule: {}\n", trainer.training.decision()))?;
    }
    console.held_out(trainer.evaluate()?)?;
    if let Some(folder) = &setup.common.options.save {
        console.line(format_args!("checkpoints: {} (for --resume)", folder.display()))?;
    }
    if let Some(measured) = trainer.training.measured()? {
        console.timeline(&setup.common.trace, &measured)?;
    }
    expert_load(&setup, &records, &mut console)?;
    let sampling = Sampling { length: 400, texts: 1, temperature: 0.8, seed: setup.common.options.seed };
    for text in trainer.sample(b'\n', &sampling)? {
        console.sample(sampling.temperature, &text)?;
    }
    Ok(())
}

/// A GPT with experts in training, one step at a time.
#[derive(Debug)]
pub struct MoeTrainer {
    setup: MoeSetup,
    training: Training,
}

impl MoeTrainer {
    /// Builds the pipeline on threads of this process.
    ///
    /// # Errors
    /// As [`MoeTrainer::over`].
    pub fn new(setup: MoeSetup) -> Result<Self, TrainError> {
        Self::over(setup, None)
    }

    /// Builds the pipeline; with a link, this process is one rank.
    ///
    /// # Errors
    /// As [`Training::new`].
    pub fn over(setup: MoeSetup, link: Option<Box<dyn Link>>) -> Result<Self, TrainError> {
        let (options, model) = (&setup.common.options, setup.model.clone());
        let recompute = options.recompute;
        // A shorter average of squared gradients and a strong weight decay suit short runs over small batches.
        let optimizer = AdamWConfig::new().with_beta_2(0.99).with_epsilon(1e-8).with_weight_decay(0.1);
        let builder = Pipeline::builder()
            .model(format!("{model:?}"))
            .optimizer(move || optimizer.init())
            .clip_norm(1.0)
            .devices(vec![setup.common.device.clone()])
            .data_parallel(options.data_parallel)
            .sharded(options.sharded)
            .compile(options.compile.unwrap_or(false))
            .timeout(Duration::from_secs(options.timeout))
            .threads(options.threads);
        // Tables that several stages hold a copy of.
        let builder = model.shared().into_iter().fold(builder, Builder::share);
        let builder = builder.stages(move |at| match model.part(at).and_then(|part| model.stage(part, at)) {
            Ok(stage) => stage.recomputed(recompute),
            Err(error) => panic!("the model was checked before: {error}"),
        });
        let training = Training::new(builder, setup.model.pattern.chars().count(), &setup.common, &setup.flags, link)?;
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
    pub fn step(&mut self) -> Result<Option<MoeStepRecord>, TrainError> {
        let common = &self.setup.common;
        let Some(&learning_rate) = common.rates.get(self.training.done()) else { return Ok(None) };
        let windows =
            common.corpus.batch(common.options.seed, self.training.done(), common.options.batch, common.options.seq);
        let report = self.training.step(batch(&self.setup, &windows), learning_rate)?;
        let observed = Observations::new(&self.setup.model, &report.observed, windows.rows());
        let loss = observed.next_loss(&self.setup.model, report.loss);
        let step = record(self.done(), loss, learning_rate, windows.inputs.len(), &report);
        Ok(Some(observed.record(&self.setup.model, step)?))
    }

    /// Saves a checkpoint if one is due; see [`Training::save_if_due`].
    ///
    /// # Errors
    /// If a rank fails, or the checkpoint cannot be written.
    pub fn save_if_due(&mut self) -> Result<(), TrainError> {
        self.training.save_if_due(&self.setup.flags)
    }

    /// The losses of the model and of a byte-pair table over held-out windows.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn evaluate(&mut self) -> Result<Evaluation, TrainError> {
        let (setup, pipeline) = (&self.setup, self.training.pipeline());
        let options = &setup.common.options;
        held_out(&setup.common.corpus, options.batch, options.seq, options.held_out, |windows| {
            let report = pipeline.eval_for(batch(setup, windows), EvalResults::Loss)?;
            let observed = Observations::new(&setup.model, &report.observed, windows.rows());
            Ok(observed.next_loss(&setup.model, report.loss.unwrap_or(f64::NAN)))
        })
    }

    /// Texts that continue a byte, which is repeated to make room for the tokens ahead. A mixture of depths chooses
    /// among the bytes so far.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn sample(&mut self, begin: u8, sampling: &Sampling) -> Result<Vec<Vec<u8>>, TrainError> {
        let prompt = vec![begin; 1 + self.setup.model.ahead.len()];
        let (setup, pipeline) = (&self.setup, self.training.pipeline());
        continued(setup.common.options.seq, &prompt, sampling, |seen| {
            match pipeline.eval(inputs(setup, seen))?.output()? {
                MoeSignal::Scores(scores) => Ok(scores.next),
                MoeSignal::Tokens(_) | MoeSignal::Hidden(_) => Err(TrainError::NoScores),
            }
        })
    }

    /// The number of layers with experts outside of the last stage.
    fn inner_layers(&self) -> Result<usize, TrainError> {
        let (stages, device) = (self.training.plan().stages(), self.setup.common.device.clone());
        let last = StageContext {
            index: stages - 1,
            stages,
            rank: 0,
            device,
            cut: None,
            group: Default::default(),
            replicas: Default::default(),
        };
        let start = self.setup.model.layers(&last)?.start;
        Ok(self.setup.model.blocks()?[..start].iter().filter(|kind| kind.has_experts()).count())
    }
}

/// Windows of text with their side data, and the loss's target.
fn batch(setup: &MoeSetup, windows: &Windows) -> Batch {
    inputs(setup, windows).target(tokens(&windows.targets, windows.seq, &setup.common.device))
}

/// Windows of text with their side data.
fn inputs(setup: &MoeSetup, windows: &Windows) -> Batch {
    let device = &setup.common.device;
    let batch = Batch::new(MoeSignal::Tokens(tokens(&windows.inputs, windows.seq, device)));
    with_sides(batch, &setup.model, windows, setup.bos, device)
}

/// Prints the run's settings, and runs all remaining steps.
fn all_steps(trainer: &mut MoeTrainer, console: &mut Console<'_>) -> Result<Vec<MoeStepRecord>, RunError> {
    let (setup, model) = (&trainer.setup, &trainer.setup.model);
    console.introduce(&setup.common, setup.parameters)?;
    let (pattern, experts, top_k) = (&model.pattern, model.experts, model.top_k);
    let bias =
        if model.bias_rate > 0.0 { format!(", and a bias changed by {}", model.bias_rate) } else { String::new() };
    let injection = model.injection;
    console.line(format_args!(
        "blocks {pattern}, {experts} experts, {top_k} per token; auxiliary losses: {injection:?}{bias}"
    ))?;
    if !model.boundaries.is_empty() {
        console.line(format_args!("stages start at blocks 0, {:?}", model.boundaries))?;
    }
    if trainer.done() > 0 {
        console.line(format_args!("resuming after step {}", trainer.done()))?;
    }
    let mut log = console.steps(setup.common.options.steps);
    let mut records = Vec::new();
    while let Some(record) = trainer.step()? {
        log.step_with(&record.step, &record, &more(&record))?;
        trainer.save_if_due()?;
        records.push(record);
    }
    Ok(records)
}

/// The text that follows a step's line.
fn more(record: &MoeStepRecord) -> String {
    let worst = record.imbalance.iter().copied().fold(1.0, f64::max);
    let (balance, z) = (record.load_balance, record.router_z);
    let ahead = if record.ahead > 0.0 { format!("  ahead {:.3}", record.ahead) } else { String::new() };
    format!("{ahead}  balance {balance:.3}  z {z:.2}  max/mean load {worst:.2}")
}

/// Prints and draws how even the experts' load was.
fn expert_load(setup: &MoeSetup, records: &[MoeStepRecord], console: &mut Console<'_>) -> Result<(), RunError> {
    let steps = records.len().min(LAST);
    for (layer, imbalance) in expert_load::imbalance(records, LAST).into_iter().enumerate() {
        console.line(format_args!(
            "layer {layer} with experts: max/mean load {imbalance:.2} over the last {steps} steps"
        ))?;
    }
    if records.is_empty() {
        return Ok(());
    }
    let path = setup.common.trace.svg.with_file_name("expert_load.svg");
    if console.leads() {
        let title = format!("Load of experts, auxiliary losses of stages: {:?}", setup.model.injection);
        let written = std::fs::write(&path, expert_load::svg(&title, records, LAST));
        written.map_err(|source| TraceError { path: path.clone(), source })?;
    }
    Ok(console.line(format_args!("load of experts: {}", path.display()))?)
}

/// Trains with auxiliary losses of all stages, of the last one alone and of none, and draws how uneven the load
/// was.
fn curves(setup: &MoeSetup, path: &Path, console: &mut Console<'_>) -> Result<(), RunError> {
    let written = |source| TraceError { path: path.to_owned(), source };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(written)?;
    }
    let mut drawn = Vec::new();
    for (name, injection) in
        [("all", Injection::All), ("last only", Injection::LastStage), ("none", Injection::Nowhere)]
    {
        let setup = MoeSetup { model: setup.model.clone().with_injection(injection), ..setup.clone() };
        let mut trainer = MoeTrainer::new(setup)?;
        let inner = trainer.inner_layers()?;
        let curve = LoadCurve::new(name.to_owned(), &all_steps(&mut trainer, console)?, inner);
        if let (Some(inner), Some(last)) = (curve.inner.last(), curve.last.last()) {
            let window = load_curves::WINDOW;
            console.line(format_args!(
                "max/mean load over the last {window} steps: inner stages {inner:.2}, last stage {last:.2}"
            ))?;
        }
        drawn.push(curve);
    }
    std::fs::write(path, load_curves::svg("Load of experts", &drawn)).map_err(written)?;
    Ok(console.line(format_args!("curves: {}", path.display()))?)
}
